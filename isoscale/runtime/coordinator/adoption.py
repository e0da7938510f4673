"""Executors that an earlier coordinator has left behind: who may be alive, and how long they may take to come. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from isoscale.backends.seam import Identity

__all__ = ["Introductions", "Survivors", "identity_of", "survivors"]

#: how long executors that are alive have to find a new coordinator
_ADOPTION_S = 15.0


@dataclass(frozen=True, slots=True)
class Survivors:
    #: process ids of those on this machine that are alive: set up, so that they will come by themselves
    ready: dict[int, int] = field(default_factory=dict)
    #: and those that have not said a word yet, with their kinds
    starting: dict[int, tuple[int, str]] = field(default_factory=dict)
    #: on other machines, where nobody can look
    remote: set[int] = field(default_factory=set)

    @property
    def local(self) -> dict[int, int]:
        return {**self.ready, **{executor: pid for executor, (pid, _) in self.starting.items()}}


def identity_of(fields: Mapping[str, Any]) -> Identity:
    """Of one of those that `Control.save_executors` was given."""
    names = ("pid", "born", "machine", "device", "name")
    return Identity(**{name: fields[name] for name in names if name in fields})


def survivors(
    left: Mapping[int, dict[str, Any]],
    machine: str,
    born: Callable[[int], int],
    is_found: Callable[[Identity], bool] = lambda identity: False,
) -> Survivors:
    """`left` is what `Control.save_executors` was given; `born` tells when a process began: ids are used again.

    `is_found` tells whether one lives that its backend knows by a name, on whichever machine.
    """
    found = Survivors()
    for executor, fields in left.items():
        named = bool(fields.get("name"))
        if not named and (fields.get("machine") != machine or not fields["born"]):
            found.remote.add(executor)
        elif is_found(identity_of(fields)) if named else born(fields["pid"]) == fields["born"]:
            if fields.get("ready"):
                found.ready[executor] = fields["pid"]
            else:
                found.starting[executor] = (fields["pid"], fields["kind"])
    return found


@dataclass(slots=True)
class Introductions:
    """The wait for survivors to say how far they are. If several live here and none comes, it is rather their machine
    that is at fault, and they hold the job's state."""

    #: how long they may take then
    orphan_s: float
    begun: float
    #: to be said now
    warning: str = ""
    _told: bool = False

    def goes_on(self, awaited: Set[int], heard: Set[int], mute: Collection[int], now: float) -> bool:
        """Whether to wait for those who are `awaited` and not `heard`. `mute` ones run on this machine."""
        self.warning = ""
        if awaited <= heard:
            return False
        waited = now - self.begun
        if waited <= _ADOPTION_S:
            return True
        silent = [executor for executor in mute if executor not in heard]
        if len(silent) < 2 or awaited & heard or waited > self.orphan_s:
            return False
        if not self._told:
            self._told = True
            self.warning = (
                f"{len(silent)} executors are alive and none has come to this coordinator: is their machine "
                f"out of memory? They have {self.orphan_s:.0f} s"
            )
        return True
