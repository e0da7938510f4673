"""Measures how fast a job is on how many devices: EDL's profile, by successive scale-ins of one run.

A run begins on all devices and gives one up every so many steps, by the plan machinery; every generation is a point,
measured without its first steps, as a median. Kinds beyond the first are measured alone too, and where kinds differ
another run has a split that gives the faster ones more. Nothing is decided here: `scheduling.fit` makes a model of it.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from isoscale.batches import NOT_DECLARED, BatchChange
from isoscale.errors import IsoscaleError, UserError
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.protocol.events import read_events
from isoscale.runtime.code.freezing import Frozen
from isoscale.runtime.coordinator.run import Observer, RunResult, run_job
from isoscale.runtime.probes.steadiness import spread_of
from isoscale.scheduling.planner import best_split
from isoscale.types import JobSpec, Placement, Settings

__all__ = [
    "Point",
    "ProfileFailedError",
    "as_json",
    "points_of",
    "profile_batch",
    "profile_live",
    "scale_ins",
    "size_changes",
    "turn_seconds",
    "uneven_split",
    "warm_up",
]

#: fixed splits, so that a point is what it says; often a word about speed, because generations are short
_SETTINGS = Settings(rebalance=False, heartbeat_s=0.1, lasting=False)

Watch = Callable[[str], AbstractContextManager[Observer]]


class ProfileFailedError(IsoscaleError):
    """A run failed, by the script's fault or otherwise."""

    def __init__(self, result: RunResult, logs: Path) -> None:
        super().__init__(result.error)
        self.result = result
        self.logs = logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement. `split` has the shares of the devices in the order of `devices`."""

    devices: dict[str, int]
    split: tuple[int, ...]
    #: per logical worker
    batch: int
    step_s: float
    #: waiting in exchanges of the executor that waits least: what is left of a step beside its longest turns
    exchange_s: float
    samples_per_s: float
    #: a quarter of the steps took less, and a quarter more
    low_s: float = 0.0
    high_s: float = 0.0


def scale_ins(devices: DeviceSet, steps: int) -> list[tuple[int, DeviceSet]]:
    """All devices, then one less every `steps` steps, the last kind first; then every other kind alone.

    >>> [f"{step}:{devices}" for step, devices in scale_ins(DeviceSet.parse("cpu*2+cpu-sse*1"), 20)]
    ['0:cpu*2+cpu-sse*1', '20:cpu*2', '40:cpu*1', '60:cpu-sse*1']
    """
    kinds = [kind for kind in devices.kinds for _ in range(devices.counts()[kind])]
    sets = [DeviceSet(tuple((kind, 1) for kind in kinds[:size])) for size in range(len(kinds), 0, -1)]
    sets += [DeviceSet(((kind, 1),)) for kind in devices.kinds[1:]]
    return [(steps * i, one) for i, one in enumerate(sets)]


def warm_up(steps: int) -> int:
    """How many of a generation's steps are not measured."""
    return max(1, min(5, steps // 4))


def as_json(workers: int, points: Sequence[Point]) -> dict[str, object]:
    """`spreads` go beside the points, whose fields are a contract."""
    spreads = [{"low_s": point.low_s, "high_s": point.high_s} for point in points]
    plain = [{name: value for name, value in asdict(point).items() if name not in spreads[0]} for point in points]
    return {"format": 1, "workers": workers, "points": plain, "spreads": spreads}


async def profile_batch(
    spec: JobSpec, devices: DeviceSet, steps: int, directory: Path, watch: Watch, code: Frozen | None = None
) -> list[Point]:
    """All points of one batch size (`spec.batch`). `watch` gives the observer of a run by what is measured, `code` was
    kept for all of them.

    Raises ProfileFailedError, or UserError if the script ends too early. Cancelling the task ends all processes.
    """
    plan = scale_ins(devices, steps)
    run = functools.partial(_run, code=code)
    log, batch = await run(replace(spec, until=steps * len(plan)), plan, None, directory / "scale-in", watch, "")
    points = points_of(log, spec.workers, batch, warm_up(steps))
    split = uneven_split(spec.workers, devices, turn_seconds(log))
    if split is None:
        return points
    words = f"split {'+'.join(map(str, split))}"
    log, _ = await run(
        replace(spec, until=steps), [(0, devices)], Placement(shares=split), directory / "uneven", watch, words
    )
    return [*points, *points_of(log, spec.workers, batch, warm_up(steps), _alone_seconds(points))]


def size_changes(sizes: Sequence[int], steps: int, num_sets: int) -> list[BatchChange]:
    """Every size for `steps` steps on each of so many sets of devices.

    >>> [(one.step, one.size) for one in size_changes([16, 32], 20, 2)]
    [(0, 16), (20, 32), (40, 16), (60, 32)]
    """
    rounds = [size for _ in range(num_sets) for size in sizes]
    return [BatchChange(steps * i, size) for i, size in enumerate(rounds)]


async def profile_live(
    spec: JobSpec,
    devices: DeviceSet,
    sizes: Sequence[int],
    steps: int,
    directory: Path,
    watch: Watch,
    code: Frozen | None = None,
) -> list[Point] | None:
    """All points of all sizes by one run that changes its batch size as it scales in; None if the script declares no
    `batch_sizes`. Otherwise as `profile_batch`, without uneven splits."""
    plan = scale_ins(devices, steps * len(sizes))
    changes = size_changes(sizes, steps, len(plan))
    job = replace(spec, until=steps * len(changes), batch_plan=tuple(changes))
    try:
        log, _ = await _run(job, plan, None, directory / "live", watch, "all batch sizes", code=code)
    except ProfileFailedError as error:
        if NOT_DECLARED in str(error):
            return None
        raise
    return points_of(log, spec.workers, sizes[0], warm_up(steps))


def uneven_split(workers: int, devices: DeviceSet, turns: Mapping[str, float]) -> tuple[int, ...] | None:
    """The best split for devices that differ; if that is the even one, one that goes a step towards the faster kind.

    None for one kind, or where every device must have one logical worker. Shares are in the order of kinds.

    >>> uneven_split(6, DeviceSet.parse("cpu*1+cpu-sse*1"), {"cpu": 0.1, "cpu-sse": 0.2})
    (4, 2)
    >>> uneven_split(4, DeviceSet.parse("cpu*1+cpu-sse*1"), {"cpu": 0.1, "cpu-sse": 0.11})
    (3, 1)
    """
    kinds = [kind for kind in devices.kinds for _ in range(devices.counts()[kind])]
    if len(devices.kinds) < 2 or workers == len(kinds) or not all(turns.get(kind) for kind in kinds):
        return None
    times = [turns[kind] for kind in kinds]
    even, best = Placement.even(workers, len(kinds)).shares, best_split(workers, times)
    if best != even:
        return best
    shares = list(even)
    fastest = times.index(min(times))
    giver = max((i for i in range(len(shares)) if shares[i] > 1 and i != fastest), key=times.__getitem__, default=None)
    if giver is None:
        return None
    shares[giver] -= 1
    shares[fastest] += 1
    return tuple(shares)


def points_of(
    events: Iterable[Mapping[str, Any]],
    workers: int,
    batch: int,
    num_dropped: int,
    alone: Mapping[str, float] | None = None,
) -> list[Point]:
    """A point per generation, and per batch size in it, that has steps left to measure. `batch` is the first size.

    Exchange times come from what executors report; where a generation was too short for that, from the step time less
    the turns as they are alone (`alone` by kind, else those of generations with one executor).
    """
    events = list(events)
    kind_of = {e["executor"]: str(e["kind"]) for e in events if e["event"] == "executor_started"}
    seconds: dict[tuple[int, int], list[float]] = defaultdict(list)
    waits: dict[tuple[int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    size = batch
    for event in events:
        if event["event"] == "batch":
            size = int(event["to"])
        elif event["event"] == "step":
            seconds[event["generation"], size].append(float(event["seconds"]))
        elif event["event"] == "executor_speed":
            waits[event["generation"], size][event["executor"]].append(float(event["idle"]))
    turns = {(kind, batch): turn_s for kind, turn_s in (alone or {}).items()}
    measured = []
    for event in events:
        if event["event"] != "generation":
            continue
        members = sorted(zip(event["members"], event["shares"], strict=True), key=_by_kind(event["members"], kind_of))
        for generation, size in list(seconds):
            if generation != event["generation"] or len(seconds[generation, size]) <= num_dropped:
                continue
            spread = spread_of(seconds[generation, size][num_dropped:])
            if len(members) == 1:
                turns.setdefault((kind_of[members[0][0]], size), spread.median_s / workers)
            measured.append((members, size, spread, waits[generation, size]))
    points = []
    for members, size, spread, told in measured:
        step_s = spread.median_s
        if len(members) > 1 and all(executor in told for executor, _ in members):
            # Shares of the steps that a report covers, and not seconds: one of them may have been a slow one.
            exchange_s = step_s * min(median(told[executor]) for executor, _ in members)
        elif len(members) > 1:
            exchange_s = step_s - max(turns.get((kind_of[executor], size), 0.0) * share for executor, share in members)
        else:
            exchange_s = 0.0
        points.append(
            Point(
                devices=dict(Counter(kind_of[executor] for executor, _ in members)),
                split=tuple(share for _, share in members),
                batch=size,
                step_s=round(step_s, 6),
                exchange_s=round(min(max(exchange_s, 0.0), 0.95 * step_s), 6),
                samples_per_s=round(workers * size / step_s, 3),
                low_s=round(spread.low_s, 6),
                high_s=round(spread.high_s, 6),
            )
        )
    return points


def turn_seconds(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Median seconds of a turn by kind, over everything that executors reported."""
    events = list(events)
    kind_of = {e["executor"]: str(e["kind"]) for e in events if e["event"] == "executor_started"}
    turns: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event["event"] == "executor_speed":
            turns[kind_of[event["executor"]]].append(float(event["turn_s"]))
    return {kind: median(values) for kind, values in turns.items()}


def _by_kind(members: Sequence[int], kind_of: Mapping[int, str]) -> Callable[[tuple[int, int]], int]:
    """Members of a kind side by side, kinds in order of appearance, as `devices` names them."""
    kinds = list(dict.fromkeys(kind_of[executor] for executor in members))
    return lambda member: kinds.index(kind_of[member[0]])


def _alone_seconds(points: Iterable[Point]) -> dict[str, float]:
    return {next(iter(p.devices)): p.step_s / p.split[0] for p in points if len(p.split) == 1}


async def _run(
    spec: JobSpec,
    plan: Sequence[tuple[int, DeviceSet]],
    placement: Placement | None,
    directory: Path,
    watch: Watch,
    words: str,
    *,
    code: Frozen | None,
) -> tuple[list[dict[str, Any]], int]:
    """One run to its end; its events, and the batch of a logical worker."""
    directory.mkdir(parents=True)
    with watch(words) as observer:
        counting = _Counting(observer)
        result = await run_job(
            replace(spec, out=str(directory)),
            plan[0][1],
            counting,
            placement=placement,
            settings=_SETTINGS,
            plan=plan[1:],
            code=code,
        )
    if result.exit_code != 0:
        raise ProfileFailedError(result, directory / "logs")
    if result.step < spec.until:
        raise UserError(
            field="--steps",
            value=spec.until // len(plan),
            problem=f"{len(plan)} points need {spec.until} steps, and the script ended after {result.step}",
            remedy="let the script train longer (its arguments come after --), or give fewer steps",
        )
    with contextlib.suppress(OSError):
        (directory / "final.pt").unlink()  # of a model that nobody wants
    return list(read_events(directory / "events.jsonl")), spec.batch or round(median(counting.samples) / spec.workers)


class _Counting:
    """Hands everything on, and notes how many samples a step has."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.samples: list[int] = []

    def on_output(self, line: str) -> bool:
        return self._observer.on_output(line)

    def on_begin(self, num_executors: int) -> None:
        self._observer.on_begin(num_executors)

    def on_step(self, step: m.StepDone, num_executors: int) -> None:
        self.samples.append(step.samples)
        self._observer.on_step(step, num_executors)

    def on_log(self, logged: m.Logged) -> None:
        self._observer.on_log(logged)

    def on_event(self, event: str, fields: dict[str, object]) -> None:
        self._observer.on_event(event, fields)
