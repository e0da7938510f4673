"""What `isoscale status` shows, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from isoscale.protocol.status import ExecutorStatus, JobState, JobStatus, RequestStatus
from isoscale.runtime.coordinator.journal import RunResult
from isoscale.runtime.membership.rescaling import BEGINNINGS
from isoscale.runtime.membership.state_machine import Membership, Phase
from isoscale.types import Placement

__all__ = ["status_of"]

_STATES: dict[Phase, JobState] = {
    "gathering": "starting",
    "training": "training",
    "done": "finished",
    "failed": "failed",
}


def status_of(
    membership: Membership,
    result: RunResult,
    *,
    term: int,
    silences: Mapping[int, float | None],
    checkpoint: tuple[int, float] | None,
    messages: list[str],
    requests: list[RequestStatus] | None = None,
) -> JobStatus:
    attempt, declared = membership.attempt, membership.declared
    state, pending = _STATES[membership.phase], None
    if membership.phase == "training" and not membership.sealed:
        # In its first generation nothing is recovered: scripts begin, and groups are formed.
        state = "starting" if membership.reason in BEGINNINGS else "recovering"
        pending = membership.reason
    elif attempt is not None:
        state = "rescaling"
        pending = f"generation {attempt.generation}: {len(attempt.members)} executors ({attempt.reason})"
    elif (pause := membership.pause_s()) > 0:
        pending = f"executors were lost before they were of use; others are started in {pause:.0f} s"
    placement = Placement(shares=membership.shares) if membership.shares else None
    executors: list[ExecutorStatus] = []
    for one in membership.roster:
        ranks = None
        if placement is not None and one.executor in membership.members:
            mine = placement.ranks_of(membership.members.index(one.executor))
            ranks = [mine.start, mine.stop - 1]
        beat, silence = one.beat, silences.get(one.executor)
        executors.append(
            {
                "executor": one.executor,
                "pid": one.pid or None,  # 0 until it has said so; a signal to 0 would reach whoever sends it
                "kind": one.kind,
                "state": "spare" if one.state == "warm" and not one.needed else one.state,
                "logical_workers": ranks,
                "turn_s": round(one.turn_s, 6) or None,
                "idle": round(min(1.0, beat.exchange_s / beat.step_s), 4) if beat is not None and beat.step_s else None,
                "last_seen_s": None if silence is None else round(silence, 3),
            }
        )
    return {
        "job": Path(membership.spec.script).name,
        "state": state,
        "term": term,
        "generation": membership.current,
        "step": result.step,
        "total": result.total or membership.spec.until,
        "samples": result.samples,
        "epoch": result.epoch,
        "loss": result.loss,
        "steps_per_s": round(1 / membership.step_s, 3) if membership.step_s else None,
        "switch_s": round(membership.switch_s, 6) or None,
        "workers": membership.spec.workers,
        "target": str(membership.goal.target),
        "set_aside": [
            {"executor": one.executor, "kind": one.kind, "gain": round(one.gain, 3)} for one in membership.goal.aside
        ],
        "executors": executors,
        "pending": pending,
        "refused": membership.goal.refused,
        "checkpoint": None if checkpoint is None else {"step": checkpoint[0], "age_s": round(checkpoint[1], 1)},
        "streams": result.streams,
        "batch": None
        if declared is None
        else {"size": result.batch_size or declared.size, "sizes": list(declared.sizes), "rule": declared.rule},
        "noise_scale": result.noise_scale,
        "noise_skipped": result.noise_skipped,
        "messages": messages,
        "requests": requests or [],
    }
