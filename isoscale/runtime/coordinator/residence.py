"""The run's directory as its coordinator keeps it: what a successor needs is in it, wherever the directory is by now.

Notices that it was moved or deleted and says where the files go from then on (`runtime.control.home` finds the place).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from isoscale.protocol import messages as m
from isoscale.runtime.control.directory import Control, saved
from isoscale.runtime.control.home import Home
from isoscale.runtime.control.server import Security
from isoscale.runtime.coordinator.processes import Processes
from isoscale.runtime.membership.roster import Roster
from isoscale.runtime.membership.target import Goal
from isoscale.types import JobSpec, Settings

__all__ = ["Residence"]


class Residence:
    def __init__(self, spec: JobSpec, settings: Settings, control: Control, security: Security) -> None:
        #: names the directory in which the run is now
        self.spec = spec
        self.home = Home(Path(spec.out), control.token)
        self.place = Path(spec.out)
        self._settings = settings
        self._control = control
        self._security = security

    def look(self) -> str:
        """What a person must know if the directory is not where it was; else "". Raises OSError: no place at all."""
        place = self.home.find()
        if place == self.place:
            return ""
        self.place, self.spec = place, replace(self.spec, out=str(place))
        return self.home.news(place)

    def settle(self, url: str) -> None:
        """Commands and a successor find the run where it is now. Raises OSError."""
        (self.place / "logs").mkdir(exist_ok=True)
        self._control.settle(self.place, url)

    @property
    def token_file(self) -> Path:
        return self._control.path / "token"

    def save_job(self, goal: Goal) -> None:
        """What the job is, what it was asked for and on what terms: enough to go on with it."""
        plan = [(entry.step, entry.devices) for entry in goal.plan]
        aside = tuple((one.executor, one.kind, one.gain) for one in goal.aside)
        files = self._security.certificate, self._security.key
        with contextlib.suppress(OSError):
            self._control.save_job(saved(self.spec, self._settings, goal.target, plan, *files, aside))

    def save_executors(self, processes: Processes, hellos: Mapping[int, m.Hello], roster: Roster) -> None:
        """Who a successor may find alive."""
        fields = processes.identities()
        for executor, known in fields.items():
            one = roster.get(executor)
            known |= {"kind": one.kind if one is not None else "", "ready": executor in hellos}
        for executor, hello in hellos.items():
            if executor not in fields and executor in roster:
                fields[executor] = {"pid": hello.pid, "born": 0, "machine": hello.machine}
        with contextlib.suppress(OSError):
            self._control.save_executors(fields)

    def elsewhere(self, file: Path) -> str:
        """Where a result is, if not in the directory that it was to be in; else ""."""
        return "" if file.parent == self.home.out else str(file)

    def is_rescue(self, file: str) -> bool:
        """Whether a result had to be saved beside a directory that is gone."""
        return bool(file) and self.home.is_rescued(Path(file).parent)
