"""When things have calmed down the job has the executors that it was asked for, or says why not."""

from __future__ import annotations

import re

from isoscale.analysis.promises.history import Entry, History
from isoscale.analysis.promises.pauses import FACTOR, SLOW_STEPS
from isoscale.analysis.promises.values import Opinion, Record
from isoscale.timelines.fields import executor_of, items, number, text, whole

__all__ = ["MIN_BURSTS", "judge", "size_of"]

#: newcomers that end together are one failure; so many, one after the other, are needed to give a target up
MIN_BURSTS = 3
_GIVEN_UP = "scaling is given up"
_DISTURB = ("executor_lost", "executor_left", "notice", "request", "restart", "coordinator_started", "executor_started")
#: starting a process and importing torch; twice that is enough on any machine that trains
_START_S = 30.0
_REFUSALS = ("refused", "failed", "given_up")
#: how a log tells of one that failed by itself
_NEWCOMER = re.compile(r"newcomer ([0-9]+): ")
_PART = re.compile(r"\s*[^\s*]+\s*(?:\*\s*([0-9]{1,9})\s*)?")


def judge(history: History, record: Record | None) -> Opinion:
    opinion = Opinion("target")
    _judge_given_up(history, record, opinion)
    wanted = _wanted(history)
    if wanted is None:
        opinion.cannot_tell("the log does not tell how many executors were asked for")
        return opinion
    if not history.spawns:
        opinion.cannot_tell("executors come by hand (--no-spawn)")
        return opinion
    at = history.generations[-1] if history.generations else None
    opinion.seen = f"asked for {wanted}" + (f", had {len(at.members)}" if at is not None else "")
    if at is None or len(at.members) == wanted or _refused(history):
        return opinion
    calm = _calm(history)
    needed = FACTOR * (_START_S + (history.limits.lost_after_s or 10.0)) + SLOW_STEPS * _slowest(history)
    if calm < needed:
        opinion.cannot_tell(f"the log ends {calm:.1f} s after the last disturbance, which is too soon to judge")
        return opinion
    what = f"trained on {len(at.members)} executors for {calm:.0f} s in which nothing happened"
    opinion.find(what, f"{wanted} were asked for", index=at.entry.index, t=at.entry.t)
    return opinion


def _judge_given_up(history: History, record: Record | None, opinion: Opinion) -> None:
    """One burst must not sink the target."""
    del record
    bursts, started = 0, 0
    first_start: dict[object, int] = {}
    joined: set[object] = set()
    burst_began = -1
    for entry in history.entries:
        executor = executor_of(entry.event)
        failed = _NEWCOMER.match(text(entry.event, "message")) if entry.name == "warning" else None
        if entry.name == "executor_started":
            first_start.setdefault(executor, entry.index)
            started = entry.index
        elif entry.name == "executor_joined":
            joined.add(executor)
        elif entry.name in ("request", "rescale"):
            bursts, burst_began = 0, -1
        elif failed or (entry.name == "executor_lost" and executor not in joined):
            executor = int(failed[1]) if failed else executor
            # Whoever was started after the burst had begun belongs to the next attempt.
            if burst_began < 0 or first_start.get(executor, started) > burst_began:
                bursts, burst_began = bursts + 1, entry.index
        elif entry.name == "warning" and _GIVEN_UP in text(entry.event, "message"):
            if "ended before they could join" in text(entry.event, "message") and bursts < MIN_BURSTS:
                what = f"the target was given up after {'one burst' if bursts == 1 else f'{bursts} bursts'}"
                opinion.find(what, text(entry.event, "message")[:120], index=entry.index, t=entry.t)
            bursts, burst_began = 0, -1


def size_of(target: str, present: int) -> int | None:
    """How many executors a target means: `4`, `+1`, `-1`, or a device set."""
    target = target.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,9}", target):
        return int(target) + (present if target[0] in "+-" else 0)
    parts = [_PART.fullmatch(part) for part in target.split("+")]
    return sum(int(part[1] or 1) for part in parts if part) if target and all(parts) else None


def _wanted(history: History) -> int | None:
    """By the last coordinator's beginning, the requests that it accepted, the plan, and who was set aside since."""
    wanted: int | None = None
    plan: list[tuple[int, str]] = []
    aside = 0
    for entry in history.named("coordinator_started", "request", "step", "straggler"):
        target = text(entry.event, "target")
        if entry.name == "coordinator_started":
            wanted, plan, aside = size_of(target, 0), _plan(entry), len(items(entry.event, "set_aside"))
        elif entry.name == "straggler":
            aside += len(items(entry.event, "set_aside"))
        elif entry.name == "step":
            while plan and plan[0][0] <= (whole(entry.event, "step") or 0):
                wanted, aside = size_of(plan.pop(0)[1], 0), 0
        elif wanted is not None and text(entry.event, "request") == "scale" and not _is_refused(history, entry):
            wanted, aside = size_of(target, wanted), 0
    return wanted if wanted is None else max(1, wanted - aside)


def _plan(entry: Entry) -> list[tuple[int, str]]:
    entries = [one for one in items(entry.event, "plan") if isinstance(one, list) and len(one) == 2]
    return [(step, str(devices)) for step, devices in entries if isinstance(step, int)]


def _is_refused(history: History, asked: Entry) -> bool:
    mine = text(asked.event, "id")
    answers = (e for e in history.named("answered") if e.index > asked.index and text(e.event, "id") == mine)
    return next((text(entry.event, "outcome") for entry in answers), "") in _REFUSALS


def _refused(history: History) -> bool:
    """The last word on the target is that it was given up."""
    for entry in reversed(history.entries):
        if entry.name == "warning" and _GIVEN_UP in text(entry.event, "message"):
            return True
        if entry.name == "answered" and text(entry.event, "outcome") in _REFUSALS:
            return True
        if entry.name in ("request", "coordinator_started"):
            return False
    return False


def _calm(history: History) -> float:
    """Seconds of training since the last disturbance."""
    last = max((entry.t for entry in history.named(*_DISTURB)), default=0.0)
    return max((one.entry.t for one in history.steps), default=last) - last


def _slowest(history: History) -> float:
    return max((number(entry.event, "seconds") or 0.0 for entry in history.named("step")), default=0.0)
