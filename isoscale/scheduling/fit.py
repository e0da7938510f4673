"""Speed models from measurements: the profile of `isoscale profile`, live speeds, steps seen at several shapes.

All fits are linear least squares with coefficients that cannot be negative; with too few points they assume the best
(no communication, cost in proportion to the batch), so that a scheduler tries what nobody has measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoscale.errors import UserError
from isoscale.scheduling.throughput import Communication, GoodputSpeed, LogicalWorkerSpeed

__all__ = ["StepPoint", "checked_profile", "fit_communication", "fit_goodput", "from_live_speeds", "from_profile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """One measured configuration: seconds of one pass over `local_batch` samples, and of the exchange not hidden."""

    num_nodes: int
    num_devices: int
    local_batch: int
    compute_s: float
    exchange_s: float


def from_profile(
    profile: Mapping[str, Any], *, devices_per_node: int = 0, field: str = "profile"
) -> LogicalWorkerSpeed:
    """The model of a job from the JSON of `isoscale profile` (docs/cli.md).

    `devices_per_node` says which points crossed nodes; 0: none did, and crossing is assumed to cost the same.
    """
    workers, points = checked_profile(profile, field)
    turns = _turn_seconds(points)
    steps = []
    for point in points:
        count = sum(point["devices"].values())
        nodes = -(-count // devices_per_node) if devices_per_node else 1
        # What is left of a step after the slowest executor's turns is what the exchange costs, hidden parts taken off.
        slowest = max(share * turns[kind] for kind, share in _kinds_and_shares(point))
        exchange_s = max(0.0, float(point["step_s"]) - slowest)
        steps.append(
            StepPoint(num_nodes=nodes, num_devices=count, local_batch=1, compute_s=slowest, exchange_s=exchange_s)
        )
    batch = int(points[0].get("batch", 0)) * workers
    return LogicalWorkerSpeed(
        num_logical_workers=workers, turn_s=turns, communication=fit_communication(steps), batch=batch
    )


def from_live_speeds(
    model: LogicalWorkerSpeed, turn_seconds: Mapping[str, Sequence[float]], exchange_s: float, num_devices: int
) -> LogicalWorkerSpeed:
    """`model` with what a running job reports: turn times by kind (median of its executors) and its exchange.

    The exchange of one size cannot tell fixed cost from cost per device: it scales what the model had, or is all fixed.
    """
    turns = dict(model.turn_s)
    turns |= {kind: float(np.median(seconds)) for kind, seconds in turn_seconds.items() if seconds}
    before = model.communication
    local, cross = before.seconds(num_devices, 1), before.seconds(num_devices, 2)
    if num_devices < 2:
        return replace(model, turn_s=turns, _cache={})
    after = Communication(
        local_fixed_s=before.local_fixed_s * exchange_s / local if local > 0 else exchange_s,
        local_per_device_s=before.local_per_device_s * exchange_s / local if local > 0 else 0.0,
        cross_fixed_s=before.cross_fixed_s * exchange_s / cross if cross > 0 else exchange_s,
        cross_per_device_s=before.cross_per_device_s * exchange_s / cross if cross > 0 else 0.0,
    )
    return replace(model, turn_s=turns, communication=after, _cache={})


def fit_communication(points: Sequence[StepPoint]) -> Communication:
    """Coefficients for devices of one node and across nodes; a case nobody measured costs what the other one does."""
    local = [p for p in points if p.num_devices > 1 and p.num_nodes == 1]
    cross = [p for p in points if p.num_nodes > 1]
    local_fixed, local_slope = _line([p.num_devices - 2 for p in local], [p.exchange_s for p in local])
    cross_fixed, cross_slope = _line([p.num_devices - 2 for p in cross], [p.exchange_s for p in cross])
    if not cross:
        cross_fixed, cross_slope = 1.1 * local_fixed, 1.1 * local_slope  # never cheaper than within a node
    return Communication(
        local_fixed_s=local_fixed,
        local_per_device_s=local_slope,
        cross_fixed_s=cross_fixed,
        cross_per_device_s=cross_slope,
    )


def fit_goodput(points: Sequence[StepPoint], model: GoodputSpeed) -> GoodputSpeed:
    """`model` with the costs that `points` show; its ranges and noise scale stay."""
    batches = [p.local_batch for p in points]
    seconds = [p.compute_s for p in points]
    if len(set(batches)) > 1:
        fixed_s, per_sample_s = _line(batches, seconds)
    else:
        # One batch cannot tell the two apart; half and half, as Pollux does.
        fixed_s = float(np.mean(seconds)) / 2
        per_sample_s = fixed_s / batches[0]
    return replace(
        model,
        fixed_s=fixed_s,
        per_sample_s=per_sample_s,
        communication=fit_communication(points),
        proven_devices=max(point.num_devices for point in points),
    )


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope, neither negative, of least squared *relative* error: steps differ by orders of magnitude."""
    if not x:
        return 0.0, 0.0
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    weights = 1.0 / np.maximum(ys, 1e-9)
    if np.ptp(xs) > 0:
        matrix = np.stack([weights, weights * xs], axis=1)
        (intercept, slope), *_ = np.linalg.lstsq(matrix, np.ones_like(ys), rcond=None)
        if intercept >= 0 and slope >= 0:
            return float(intercept), float(slope)
        if intercept < 0:
            return 0.0, _scale(weights * xs)
    return _scale(weights), 0.0


def _scale(column: NDArray[np.float64]) -> float:
    """The c >= 0 that makes c * column closest to 1."""
    square = float(column @ column)
    return max(0.0, float(column.sum()) / square) if square > 0 else 0.0


def _turn_seconds(points: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of a turn by kind: from points of one kind alone where there are any, else as a mixed point allows."""
    samples: dict[str, list[float]] = {}
    for point in points:
        if len(point["devices"]) == 1:
            [kind] = point["devices"]
            samples.setdefault(kind, []).append((point["step_s"] - point["exchange_s"]) / max(point["split"]))
    for point in points:
        for kind, share in _kinds_and_shares(point):
            if kind not in samples:
                samples[kind] = [(point["step_s"] - point["exchange_s"]) / share]
    return {kind: float(np.median(values)) for kind, values in samples.items()}


def _kinds_and_shares(point: Mapping[str, Any]) -> list[tuple[str, int]]:
    kinds = itertools.chain.from_iterable([kind] * count for kind, count in point["devices"].items())
    return list(zip(kinds, point["split"], strict=True))


def checked_profile(profile: Mapping[str, Any], field: str) -> tuple[int, list[Mapping[str, Any]]]:
    """Logical workers and points of a profile. Raises UserError."""

    def refuse(value: object, problem: str) -> UserError:
        return UserError(field=field, value=value, problem=problem, remedy="write it again with `isoscale profile`")

    if profile.get("format") != 1:
        raise refuse(profile.get("format"), "not a profile of format 1")
    workers, points = profile.get("workers"), profile.get("points")
    if not isinstance(workers, int) or workers < 1 or not isinstance(points, list) or not points:
        raise refuse(workers, "a profile has `workers` and at least one point")
    for point in points:
        try:
            good = (
                sum(point["split"]) == workers
                and len(point["split"]) == sum(point["devices"].values())
                and 0 < point["step_s"] < math.inf
                and 0 <= point["exchange_s"] < point["step_s"]
            )
        except (KeyError, TypeError):
            good = False
        if not good:
            raise refuse(point, "a point that does not add up")
    return workers, points
