"""What `isoscale profile` makes of an event log: points, exchange times, splits. No processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isoscale.kinds import DeviceSet
from isoscale.runtime.tools.profile import as_json, points_of, scale_ins, turn_seconds, uneven_split, warm_up
from isoscale.runtime.tools.verify import run_reference_ranks
from isoscale.scheduling.fit import from_profile
from isoscale.types import JobSpec


def started(executor: int, kind: str) -> dict[str, Any]:
    return {"event": "executor_started", "executor": executor, "pid": 1, "kind": kind}


def generation(number: int, members: list[int], shares: list[int], seconds: list[float]) -> list[dict[str, Any]]:
    steps = [{"event": "step", "step": 0, "generation": number, "seconds": s} for s in seconds]
    return [{"event": "generation", "generation": number, "members": members, "shares": shares}, *steps]


def speed(executor: int, number: int, turn_s: float, idle: float) -> dict[str, Any]:
    return {
        "event": "executor_speed",
        "executor": executor,
        "generation": number,
        "turn_s": turn_s,
        "exchange_s": 0.0,
        "idle": idle,
    }


def test_steps_of_the_warm_up_are_dropped_and_the_median_is_taken() -> None:
    log = [started(0, "cpu"), *generation(1, [0], [4], [9.0, 9.0, 0.4, 0.2, 0.3])]
    (point,) = points_of(log, workers=4, batch=8, num_dropped=2)
    assert point.step_s == 0.3
    assert point.exchange_s == 0.0
    assert point.samples_per_s == pytest.approx(4 * 8 / 0.3, abs=1e-3)
    assert not points_of(log, workers=4, batch=8, num_dropped=5), "a generation that is all warm-up is no point"


def test_the_exchange_is_what_the_executor_waits_that_waits_least() -> None:
    speeds = [speed(0, 1, 0.1, 0.5), speed(0, 1, 0.1, 0.7), speed(0, 1, 0.1, 0.6), speed(1, 1, 0.3, 0.1)]
    log = [started(0, "cpu"), started(1, "cpu-sse"), *generation(1, [0, 1], [2, 2], [1.0] * 3), *speeds]
    (point,) = points_of(log, workers=4, batch=1, num_dropped=1)
    assert point.exchange_s == pytest.approx(0.1)


def test_without_reports_the_exchange_is_what_turns_alone_leave_of_a_step() -> None:
    log = [
        started(0, "cpu"),
        started(1, "cpu"),
        *generation(1, [0, 1], [3, 1], [0.5] * 3),
        *generation(2, [0], [4], [0.4] * 3),
    ]
    both, alone = points_of(log, workers=4, batch=1, num_dropped=1)
    assert both.exchange_s == pytest.approx(0.5 - 3 * 0.1)
    assert alone.exchange_s == 0.0


def test_splits_stand_in_the_order_of_kinds_whatever_the_order_of_executors() -> None:
    log = [started(0, "cpu"), started(1, "cpu-sse"), started(2, "cpu")]
    log += generation(1, [0, 1, 2], [4, 1, 3], [0.4, 0.4])
    (point,) = points_of(log, workers=8, batch=1, num_dropped=1)
    assert point.devices == {"cpu": 2, "cpu-sse": 1}
    assert point.split == (4, 3, 1)


def test_a_profile_is_what_the_scheduler_reads() -> None:
    log = [started(0, "cpu"), started(1, "cpu")]
    log += [*generation(1, [0, 1], [2, 2], [0.25] * 3), speed(0, 1, 0.1, 0.2), speed(1, 1, 0.1, 0.2)]
    log += generation(2, [0], [4], [0.4] * 3)
    profile = as_json(4, points_of(log, workers=4, batch=16, num_dropped=1))
    assert profile["spreads"] == [{"low_s": 0.25, "high_s": 0.25}, {"low_s": 0.4, "high_s": 0.4}]
    assert set(profile["points"][0]) == {"devices", "split", "batch", "step_s", "exchange_s", "samples_per_s"}
    model = from_profile(profile)
    assert model.turn_s["cpu"] == pytest.approx(0.1)


def test_kinds_come_off_from_the_end_and_each_is_measured_alone() -> None:
    plan = scale_ins(DeviceSet.parse("cpu*1+cpu-sse*2"), 10)
    assert [f"{step}:{devices}" for step, devices in plan] == [
        "0:cpu*1+cpu-sse*2",
        "10:cpu*1+cpu-sse*1",
        "20:cpu*1",
        "30:cpu-sse*1",
    ]
    assert warm_up(4) == 1
    assert warm_up(100) == 5


def test_an_uneven_split_gives_the_faster_kind_more_or_there_is_none() -> None:
    mixed = DeviceSet.parse("cpu*1+cpu-sse*1")
    assert uneven_split(8, mixed, {"cpu": 1.0, "cpu-sse": 3.0}) == (6, 2)
    assert uneven_split(4, mixed, {"cpu": 1.0, "cpu-sse": 0.99}) == (1, 3), "even is best, so a step beside it"
    assert uneven_split(2, mixed, {"cpu": 1.0, "cpu-sse": 3.0}) is None, "one each is all there is"
    assert uneven_split(8, DeviceSet.parse("cpu*2"), {"cpu": 1.0}) is None
    assert uneven_split(8, mixed, {"cpu": 1.0}) is None, "a kind that nobody has measured"
    log = [
        started(0, "cpu"),
        started(1, "cpu-sse"),
        speed(0, 1, 0.1, 0.0),
        speed(1, 1, 0.3, 0.0),
        speed(1, 1, 0.5, 0.0),
    ]
    assert turn_seconds(log) == {"cpu": 0.1, "cpu-sse": pytest.approx(0.4)}


async def _nothing(tmp_path: Path) -> None:
    await run_reference_ranks(JobSpec(workers=1, batch=8, out=str(tmp_path)), "cpu", _Nobody())


class _Nobody:
    def on_step(self, step: int) -> None: ...

    def on_output(self, line: str) -> None: ...


def test_the_reference_never_takes_another_batch_size(tmp_path: Path) -> None:
    import asyncio

    with pytest.raises(ValueError, match="batch=8"):
        asyncio.run(_nothing(tmp_path))


def test_a_run_that_changes_its_batch_size_gives_a_point_for_each_size_of_each_generation() -> None:
    events: list[dict[str, Any]] = [{"event": "executor_started", "executor": e, "kind": "cpu"} for e in (0, 1)]
    for generation, members in ((1, [0, 1]), (2, [0])):
        shares = [2, 2] if generation == 1 else [4]
        events.append({"event": "generation", "generation": generation, "members": members, "shares": shares})
        for size in (8, 32):
            events.append({"event": "batch", "to": size})
            seconds = 0.001 * size * 4 / len(members)
            events += [{"event": "step", "generation": generation, "seconds": seconds}] * 4
    points = points_of(events, 4, 8, 1)
    assert [(sum(p.devices.values()), p.batch, p.samples_per_s) for p in points] == [
        (2, 8, 2000.0),
        (2, 32, 2000.0),
        (1, 8, 1000.0),
        (1, 32, 1000.0),
    ]
