"""Who comes to the coordinator: executors it has started or adopted, and those that somebody starts by hand.

Keeps how each introduced itself, and holds the code and data that it has against the job's. Whether it is needed, and
for what, is `runtime.membership`'s affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from isoscale.backends.host_id import machine_id
from isoscale.backends.seam import Identity
from isoscale.backends.system import born
from isoscale.errors import IsoscaleError
from isoscale.protocol import messages as m
from isoscale.runtime.code.freezing import Frozen, what_changed
from isoscale.runtime.coordinator.adoption import Introductions, Survivors, identity_of
from isoscale.runtime.coordinator.processes import Processes
from isoscale.runtime.coordinator.provenance import Provenance
from isoscale.runtime.coordinator.remote import Remote
from isoscale.runtime.coordinator.residence import Residence
from isoscale.runtime.membership.state_machine import Membership
from isoscale.types import Settings

__all__ = ["Reception"]

#: how often those who are awaited are looked for
_LOOK_S = 0.02


class Reception:
    def __init__(
        self,
        membership: Membership,
        residence: Residence,
        settings: Settings,
        term: int,
        processes: Processes,
        remote: Remote,
        now: Callable[[], float],
    ) -> None:
        #: how each executor that ever came introduced itself
        self.hellos: dict[int, m.Hello] = {}
        self.provenance = Provenance(residence.spec.out, residence.spec.determinism, anew=True)
        self.code: Frozen | None = None
        self._membership = membership
        self._residence = residence
        self._settings = settings
        self._term = term
        self._processes = processes
        self._remote = remote
        self._now = now
        self._told_changes = ""

    def use_code(self, frozen: Frozen) -> None:
        """What executors run from now on."""
        self.code, self._processes.code = frozen, frozen.path
        spec = self._residence.spec
        self.provenance = Provenance(spec.out, spec.determinism, anew=frozen.anew)

    def welcome(self, executor: int) -> m.Welcome | None:
        """What an executor must know of its job; None if nobody has called it."""
        one = self._membership.roster.get(executor)
        adopting = one is None and (executor in self._processes or executor in self._remote.expected)
        if one is None and not adopting:
            return None
        return self._welcome(executor, one.kind if one is not None else self._membership.goal.target.kinds[0])

    def welcome_joining(self, kind: str) -> m.Welcome | str:
        """Somebody started `isoscale executor --join`: who it is, or why not."""
        spec = self._residence.spec
        if self._membership.phase in ("done", "failed"):
            return "the job has ended"
        if kind not in spec.kinds:
            return f"kind {kind} was not declared when the job began ({', '.join(spec.kinds)})"
        executor = self._membership.on_joining(kind)
        self._remote.may_join(executor, self._now())
        beside = self.code.manifest.beside_script() if self.code is not None else {}
        return msgspec.structs.replace(self._welcome(executor, kind), code=beside, versions=self.provenance.versions)

    def _welcome(self, executor: int, kind: str) -> m.Welcome:
        return m.Welcome(
            spec=self._residence.spec, settings=self._settings, kind=kind, executor=executor, term=self._term
        )

    def introduce(self, executor: int, hello: m.Hello) -> bool:
        """It says who it is; whether that is new. A process of this machine is watched as if started here."""
        known = executor in self.hellos
        self.hellos[executor] = hello
        self._remote.came(executor)
        processes = self._processes
        if executor not in processes and hello.machine == machine_id() and processes.proves(executor, hello):
            identity = Identity(pid=hello.pid, born=born(hello.pid), machine=hello.machine)
            processes.adopt(executor, identity, hello.key)
        return not known

    def adopt(self, found: Survivors, known: Mapping[int, dict[str, Any]]) -> None:
        """Processes of this machine that an earlier coordinator has left behind, as it had written them down."""
        for executor, pid in found.local.items():
            fields = known[executor]
            adopted = self._processes.adopt(executor, identity_of(fields), fields.get("key", ""))
            if adopted and executor in found.starting:
                self._membership.on_still_starting(executor, found.starting[executor][1], pid)

    async def hear_from(self, executors: set[int], warn: Callable[[str], None]) -> None:
        """Wait until all of them that are alive have come to this coordinator, but not for ever."""
        wait = Introductions(self._settings.orphan_s, self._now())
        while True:
            local = {e for e in executors if e in self._processes}
            mute = [e for e in local if not self._processes.is_stopped(e)]
            awaited = local | (executors & self._remote.expected)
            if not wait.goes_on(awaited, set(self.hellos), mute, self._now()):
                return
            warn(wait.warning)
            await asyncio.sleep(_LOOK_S)

    def compare(self, executor: int, uses: m.Uses, *, gathers: bool) -> IsoscaleError | None:
        """What is wrong with what an executor runs and reads. One not introduced yet is refused when it is."""
        roster = self._membership.roster
        trains = gathers or roster[executor].state in ("member", "leaving")
        error = self.provenance.compare(executor, uses, trains=trains, known=roster.__contains__)
        return error if executor in self.hellos else None

    async def edited(self) -> str:
        """What was edited since the code was kept, if that was not said already; else "". Newcomers do not run it."""
        changed = "" if self.code is None else await asyncio.to_thread(what_changed, self.code.manifest)
        if not changed or changed == self._told_changes:
            return ""
        self._told_changes = changed
        return f"{changed}; isoscale stop, then isoscale resume --new-code takes the edited files"
