"""Who may be alive of the executors that an earlier coordinator has left behind, as its list of them tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Survivors", "survivors"]


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


def survivors(left: Mapping[int, dict[str, Any]], machine: str, born: Callable[[int], int]) -> Survivors:
    """`left` is what `Control.save_executors` was given; `born` tells when a process began: ids are used again."""
    found = Survivors()
    for executor, fields in left.items():
        if fields.get("machine") != machine or not fields["born"]:
            found.remote.add(executor)
        elif born(fields["pid"]) == fields["born"]:
            if fields.get("ready"):
                found.ready[executor] = fields["pid"]
            else:
                found.starting[executor] = (fields["pid"], fields["kind"])
    return found
