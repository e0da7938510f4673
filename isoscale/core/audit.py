"""Which turns are run a second time elsewhere, and what it means if the bits differ.

Chosen by chance from the job's seed and the step, so all executors choose alike without a word. Pure: running
turns and comparing them in the seal is `core.engine`'s.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isoscale.types import Placement

__all__ = ["AuditResult", "AuditSample", "Audits", "chosen_audits", "judge", "with_referees"]

#: by logical rank: positions of the executors that run its turn, the host first
Audits = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What the digests of the same turn from several executors say."""

    #: logical ranks whose digests differ
    differing: tuple[int, ...]
    #: position of the executor that most of the others contradict; None if that cannot be told
    culprit: int | None


@dataclass(frozen=True, slots=True)
class AuditSample:
    """How many of a job's turns are run on a second executor, and the seed that chooses them."""

    seed: int = 0
    #: the share of all turns
    turns: float = 0.0

    def of(self, placement: Placement, committed: int) -> Audits:
        """Those of the step that follows so many committed ones."""
        return chosen_audits(placement, self.seed, committed, self.turns)


def chosen_audits(placement: Placement, seed: int, step: int, probability: float) -> Audits:
    """Each turn with this probability, on one other executor."""
    if probability <= 0 or placement.num_executors < 2:
        return {}
    chance = random.Random(f"{seed}/{step}")
    audits = {}
    for rank in range(placement.num_logical_workers):
        if chance.random() < probability:
            host = placement.executor_of(rank)
            other = chance.randrange(placement.num_executors - 1)
            audits[rank] = (host, other + (other >= host))
    return audits


def with_referees(audits: Audits, ranks: Sequence[int], placement: Placement) -> Audits:
    """The turns in question again, with one more executor each where there is one."""
    again = {}
    for rank in ranks:
        others = [e for e in range(placement.num_executors) if e not in audits[rank]]
        again[rank] = (*audits[rank], *others[:1])
    return again


def judge(audits: Audits, digests: Mapping[int, Sequence[int]]) -> AuditResult:
    """`digests` has one number per executor of `audits`, in the same order."""
    differing = tuple(rank for rank in audits if len(set(digests[rank])) > 1)
    blamed: Counter[int] = Counter()
    for rank in differing:
        (value, votes), *_ = Counter(digests[rank]).most_common()
        if votes > len(audits[rank]) / 2:
            blamed.update(e for e, d in zip(audits[rank], digests[rank], strict=True) if d != value)
    culprits = [executor for executor, _ in blamed.most_common(1)]
    return AuditResult(differing, culprits[0] if culprits else None)
