"""Training pauses no longer than what happened can explain.

A pause is the time between two steps that follow one another in the log, less what a step takes. It is judged where
something of the protocol lies in it. Its bound is a sum over what lies in it of the timers that the protocol waits for,
times `FACTOR`, plus `SLOW_STEPS` of the slowest steps in which nothing happened: generous enough for a slow machine,
and far below what a protocol takes that waits for the wrong thing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from isoscale.analysis.promises.history import Committed, Entry, History, members_of
from isoscale.analysis.promises.values import Limits, Opinion, Record
from isoscale.timelines.fields import executor_of, seconds, text, whole

__all__ = ["FACTOR", "SLOW_STEPS", "judge"]

FACTOR = 2.0
SLOW_STEPS = 5
_LONGEST_TRY_S = 30.0
#: a rescale is written down a few events after its first step
_LATE_EVENTS = 8


@dataclass(frozen=True, slots=True)
class _Cause:
    name: str
    seconds: float


def judge(history: History, record: Record | None) -> Opinion:
    opinion = Opinion("pauses")
    limits = history.limits
    if limits.lost_after_s is None:
        opinion.cannot_tell("nobody tells after how many seconds an executor counts as lost")
        return opinion
    worst: dict[str, tuple[float, float]] = {}
    away = list(_away(history, record, limits))
    gaps = [
        (one, two, pause, _causes(history, record, limits, away, (one.entry, two.entry), pause))
        for one, two, pause in _gaps(history)
    ]
    slowest = _slowest(history, [pause for _, _, pause, causes in gaps if not causes])
    # What a script does between epochs takes as long as it likes: nobody knows how long before it was seen undisturbed.
    knows_epochs = any(_is_between_epochs(one, two) for one, two, _, causes in gaps if not causes)
    for one, two, pause, causes in gaps:
        if not causes or (_is_between_epochs(one, two) and not knows_epochs):
            continue
        after = two.entry
        bound = FACTOR * sum(cause.seconds for cause in causes) + SLOW_STEPS * slowest
        name = " + ".join(dict.fromkeys(cause.name for cause in causes))
        if pause / bound > (worst[name][0] / worst[name][1] if name in worst else 0.0):
            worst[name] = (pause, bound)
        if pause > bound:
            what = f"no step for {pause:.1f} s before step {after.event.get('step')}"
            opinion.find(what, f"{name} explains at most {bound:.1f} s", index=after.index, t=after.t)
    for entry in history.named("rescale"):
        pause, bound = seconds(entry.event, "pause_s") or 0.0, 3 * FACTOR * limits.lost_after_s + SLOW_STEPS * slowest
        if pause > bound and not _is_slowed(record, entry.t, pause):
            what = f"the rescale at step {entry.event.get('step')} paused for {pause:.1f} s"
            opinion.find(what, f"at most {bound:.1f} s are its own", index=entry.index, t=entry.t)
    shown = sorted(worst.items(), key=lambda item: -item[1][0])[:3]
    opinion.seen = "; ".join(f"{name}: {pause:.2f} s of {bound:.0f} s" for name, (pause, bound) in shown)
    opinion.seen = opinion.seen or "nothing interrupted it"
    return opinion


def _is_between_epochs(one: Committed, two: Committed) -> bool:
    return one.epoch != two.epoch


def _gaps(history: History) -> Iterator[tuple[Committed, Committed, float]]:
    """Two steps that follow one another in the log, and how long nothing was committed between them.

    By the log, or by the executor's own clock if that says less: a coordinator may write late, and an executor that
    has just come counts from its start.
    """
    committed = zip(history.steps, history.committed_at, strict=True)
    for (before, at), (after, then) in pairwise(committed):
        told = after.entry.t - before.entry.t
        if after.step == before.step + 1 and after.seconds is not None:
            told = min(told, after.seconds, max(0.0, then - at) or told)
        yield before, after, max(0.0, told)


def _slowest(history: History, undisturbed: list[float]) -> float:
    """Of the steps in which nothing happened, and of the first ones, in which code may be compiled."""
    begun = {one.generation.number for one in history.beginnings}
    firsts = [one.seconds for one in history.steps if one.step == 1 and one.generation in begun and one.seconds]
    return max([1.0, *undisturbed, *firsts])


def _causes(
    history: History,
    record: Record | None,
    limits: Limits,
    away: list[tuple[str, float, float]],
    between: tuple[Entry, Entry],
    pause: float,
) -> list[_Cause]:
    before, after = between
    lost_after = limits.lost_after_s or 0.0
    begin, end = after.t - pause - 1.0, after.t
    found: list[_Cause] = []
    first = bisect_left(history.entries, before.index, key=lambda entry: entry.index)
    for place in range(first, len(history.entries)):
        entry = history.entries[place]
        if entry.index > after.index + _LATE_EVENTS:
            break
        found += _cause_of(history, limits, entry, late=entry.index > after.index)
    found += [
        _Cause(name, min(stop, end) - max(start, begin) + lost_after)
        for name, start, stop in away
        if stop > begin and start < end
    ]
    if record is not None and _is_slowed(record, end, pause):
        found.append(_Cause("slow", sum(deed.seconds for deed in record.deeds if deed.what == "slow") + lost_after))
    return found


def _cause_of(history: History, limits: Limits, entry: Entry, *, late: bool) -> list[_Cause]:
    lost_after = limits.lost_after_s or 0.0
    if entry.name == "rescale":
        return [_Cause("switch", lost_after + (seconds(entry.event, "wait_s") or 0.0))]
    if late:
        return []
    reason = text(entry.event, "reason")
    match entry.name:
        case "generation" if reason in ("started", "resumed"):
            return [_Cause("restart", _start_up(history, entry) + lost_after)]
        case "restart":
            # The pause before a try doubles with every one that failed.
            return [_Cause("restart", min(_LONGEST_TRY_S, 2.0 ** min(whole(entry.event, "attempt") or 0, 9)))]
        case "generation" | "notice" | "straggler":
            return [_Cause("switch", lost_after)]
        case "executor_lost" if "heartbeat" in reason or "stopped" in reason or "silent" in reason:
            return [_Cause("silence", 2 * lost_after)]
        case "executor_lost" if "waiting" in reason:
            return [_Cause("stall", limits.stalled_after_s + lost_after)]
        case "executor_lost" | "suspect":
            return [_Cause("loss", lost_after + limits.grace_s)]
    return []


def _away(history: History, record: Record | None, limits: Limits) -> Iterator[tuple[str, float, float]]:
    """When there was no coordinator, or one that did not run: the cause, from, until."""
    for one, two in pairwise(history.lives):
        yield "no coordinator", one.entries[-1].t, two.entries[0].t + limits.adoption_s
    for entry in history.named("coordinator_paused"):
        yield "coordinator paused", entry.t - (seconds(entry.event, "seconds") or 0.0), entry.t
    for start, stop in record.pauses() if record is not None else ():
        yield "coordinator paused", start, stop


def _start_up(history: History, joined: Entry) -> float:
    """How long processes of this generation took from their start."""
    members = members_of(joined.event)
    starts = [
        entry.t
        for entry in history.named("executor_started")
        if entry.index < joined.index and executor_of(entry.event) in members
    ]
    return max(0.0, joined.t - min(starts)) if starts else 0.0


def _is_slowed(record: Record | None, t: float, pause: float) -> bool:
    deeds = record.deeds if record is not None else []
    return any(deed.what in ("slow", "flood") and deed.t < t and deed.t + deed.seconds > t - pause for deed in deeds)
