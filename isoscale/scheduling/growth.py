"""What more devices would give one job: EasyScale's intra-job proposals, and falling back when a change did harm.

    speedup = rate(new devices) / rate(devices held)
    score   = (speedup - 1) / devices added + 1            speed-up per device, what inter-job schedulers sort by
    waste   = 1 - rate(new devices) / sum of the devices' rates alone

For jobs of logical workers this waste is EasyScale's waste_norm (`planner.plan_figures`), communication counted in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isoscale.scheduling.state import Cluster, JobRequest, Shape, SpeedModel, packed_shape

__all__ = ["MAX_WASTE", "Proposal", "counts_shape", "growth_proposals", "slowed", "waste_share"]

#: plans that waste more than this are not proposed (the paper's and the artifact's bound)
MAX_WASTE = 0.30
#: numbers of devices to add beyond which not every one is looked at
_MANY = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """`added` more devices of `kind`, less those `dropped`, would make the job `speedup` times as fast."""

    kind: str
    added: int
    #: devices of other kinds that the job gives back: too slow beside the new ones, or too many with them
    dropped: tuple[tuple[str, int], ...] = ()
    speedup: float
    score: float
    waste: float


def counts_shape(cluster: Cluster, counts: Mapping[str, int]) -> Shape:
    """Devices by kind, each kind packed onto as few of the cluster's nodes as possible."""
    shape: Shape = ()
    for kind, count in counts.items():
        if count:
            shape += packed_shape(kind, count, max(1, cluster.node_size(kind)))
    return shape


def waste_share(speed: SpeedModel, shape: Shape) -> float:
    """Share of the devices' speed that a job leaves unused; 0.0 for a single device."""
    alone = sum(count * speed.rate(((kind, 1),)) for kind, count in shape)
    return max(0.0, 1.0 - speed.rate(shape) / alone) if alone > 0 else 0.0


def growth_proposals(
    cluster: Cluster,
    request: JobRequest,
    speed: SpeedModel,
    held: Mapping[str, int],
    free: Mapping[str, int],
    *,
    top: int = 3,
    factor: float = 2.0,
    max_waste: float = MAX_WASTE,
    moves: bool = False,
) -> list[Proposal]:
    """The best `top` ways to add devices of one kind, the highest score first; ties go to more devices.

    Slower devices are given back where the job is faster without them, or has no use for so many.

    `free` bounds what may be added by kind. A job grows at most `factor`-fold at a time: its model is unproven beyond.
    Proposals that are no faster or waste too much are left out. A job that may not mix kinds grows on the kind that it
    holds; with `moves` it may also give all of that back for devices of another kind.
    """
    now = speed.rate(counts_shape(cluster, held))
    total = sum(held.values())
    most = min(request.max_devices, int(total * factor))
    found: list[Proposal] = []
    kinds = request.kinds or cluster.kinds
    if not request.mixes_kinds and not moves:
        kinds = tuple(kind for kind in kinds if held.get(kind))
    if now <= 0:
        return []
    alone = {kind: speed.rate(((kind, 1),)) for kind in {*kinds, *held}}
    for kind in kinds:
        least = 1 if held.get(kind) else max(1, request.min_devices)
        for added in _sizes(least, min(most - held.get(kind, 0), free.get(kind, 0))):
            if request.mixes_kinds or held.get(kind):
                kept, rate = _best_company(cluster, speed, held, kind, added, most, alone)
            else:
                kept = {kind: added}
                rate = speed.rate(counts_shape(cluster, kept))
            speedup = rate / now
            if speedup <= 1.0:
                continue
            whole = sum(count * alone[k] for k, count in kept.items())
            waste = max(0.0, 1.0 - rate / whole) if whole > 0 else 0.0
            if waste > max_waste:
                continue
            dropped = tuple((k, count - kept.get(k, 0)) for k, count in held.items() if count > kept.get(k, 0))
            score = (speedup - 1.0) / added + 1.0
            found.append(Proposal(kind=kind, added=added, dropped=dropped, speedup=speedup, score=score, waste=waste))
    found.sort(key=lambda p: (-round(p.score, 9), -p.added))
    return found[:top]


def _sizes(least: int, most: int) -> Sequence[int]:
    """All numbers from `least` to `most`; of very many only 1, 2, 3, 4, 6, 8, 12, 16, ... and the ends."""
    if most - least < _MANY:
        return range(least, most + 1)
    powers = [2**n for n in range(most.bit_length())]
    return sorted({least, most, *(n for power in powers for n in (power, 3 * power) if least <= n <= most)})


def _best_company(
    cluster: Cluster,
    speed: SpeedModel,
    held: Mapping[str, int],
    kind: str,
    added: int,
    most: int,
    alone: Mapping[str, float],
) -> tuple[dict[str, int], float]:
    """What to hold with `added` more of `kind`, and its rate: of the other kinds, the slower ones go first, as many as
    pays."""
    new = {**held, kind: held.get(kind, 0) + added}
    slow_first = sorted((k for k in held if k != kind), key=alone.__getitem__)
    best, best_rate = dict(new), -1.0
    while True:
        excess = sum(new.values()) - most
        for k in slow_first:
            less = min(new[k], max(0, excess))
            new[k] -= less
            excess -= less
        rate = speed.rate(counts_shape(cluster, new))
        if rate > best_rate:
            best, best_rate = dict(new), rate
        left = [k for k in slow_first if new[k]]
        if not left:
            return {k: count for k, count in best.items() if count}, best_rate
        new[left[0]] = 0


def slowed(speed: SpeedModel, now: Shape, before: Shape, *, tolerance: float = 0.02) -> bool:
    """Whether the devices that a job had before are faster than those it has now, by what has been learned since."""
    return bool(before) and speed.rate(now) * (1.0 + tolerance) < speed.rate(before)
