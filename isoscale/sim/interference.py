"""How much jobs on one node slow each other down: the same for all, or by pairs of applications.

The backend asks again whenever a job's neighbours change. Jobs that are still starting are neighbours, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from isoscale.scheduling.state import Allocation
from isoscale.sim.job import SimJob

__all__ = ["Interference", "PairInterference", "Resident", "Slowdown"]


class Resident(Protocol):
    """A job that holds devices."""

    job: SimJob
    allocation: Allocation


class Slowdown(Protocol):
    """What neighbours cost. Pure: the same jobs give the same answer."""

    @property
    def matters(self) -> bool:
        """False: nobody slows anybody down, and nobody asks."""
        ...

    def kept(self, one: Resident, others: Iterable[Resident]) -> float:
        """Share of its speed (above 0) that `one` keeps beside `others`: the jobs with which it shares a node."""
        ...

    def stretch(self, one: Resident, others: Iterable[Resident]) -> float:
        """How many times as long a start or a resumption of `one` takes beside `others`."""
        ...

    def in_words(self) -> str:
        """For people."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Jobs that share a node slow each other down: speed and busy share lose `share` (0..1).

    With `distributed_only` a job suffers only if it spans nodes and shares one with another job that does (the rule of
    the Pollux simulator); otherwise from any neighbour (the Philly study's experiment).
    """

    share: float = 0.0
    distributed_only: bool = False

    @property
    def matters(self) -> bool:
        return self.share > 0

    def kept(self, one: Resident, others: Iterable[Resident]) -> float:
        return 1.0 - self.share if self._suffers(one, others) else 1.0

    def stretch(self, one: Resident, others: Iterable[Resident]) -> float:
        return 1.0

    def in_words(self) -> str:
        return f"{self.share:.0%} slower beside another job"

    def _suffers(self, one: Resident, others: Iterable[Resident]) -> bool:
        only = self.distributed_only
        if only and len(one.allocation) < 2:
            return False
        return any(not only or len(other.allocation) > 1 for other in others)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairInterference:
    """As measured two by two: who the neighbour is matters. Applications are those of `JobRequest.application`."""

    #: (job's application, neighbour's application) -> share of its speed that the job keeps, above 0; pairs that are
    #: not there leave each other alone. The shares of several neighbours multiply.
    shares: Mapping[tuple[str, str], float]
    #: times as long a start or a resumption takes beside any other job
    start: float = 1.0

    @property
    def matters(self) -> bool:
        return self.start != 1.0 or any(share != 1.0 for share in self.shares.values())

    def kept(self, one: Resident, others: Iterable[Resident]) -> float:
        mine, share = one.job.request.application, 1.0
        for other in others:
            share *= self.shares.get((mine, other.job.request.application), 1.0)
        return share

    def stretch(self, one: Resident, others: Iterable[Resident]) -> float:
        return self.start if any(True for _ in others) else 1.0

    def in_words(self) -> str:
        start = "" if self.start == 1.0 else f"; a start takes {self.start:.2f} times as long beside another job"
        return f"by {len(self.shares)} pairs of applications{start}"
