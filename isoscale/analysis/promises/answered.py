"""Every request is answered once, and what was answered is true: a stop has its checkpoint, a checkpoint is there."""

from __future__ import annotations

from isoscale.analysis.promises.history import Entry, History
from isoscale.analysis.promises.sealed import was_impatient
from isoscale.analysis.promises.values import Opinion, Record
from isoscale.analysis.promises.words import count
from isoscale.timelines.fields import text, whole

__all__ = ["judge"]


def judge(history: History, record: Record | None) -> Opinion:
    opinion = Opinion("answered")
    requests, answers = list(history.named("request")), list(history.named("answered"))
    _judge_pairs(history, opinion)
    for entry in history.named("stopped"):
        _judge_stopped(history, entry, opinion)
    if record is not None:
        _judge_record(history, record, opinion)
    if not history.is_told and not requests:
        opinion.cannot_tell("the log is of a version that does not write down requests")
    opinion.seen = f"{count(len(requests), 'request')}, {count(len(answers), 'answer')}" if requests else "no request"
    return opinion


def _judge_pairs(history: History, opinion: Opinion) -> None:
    """A coordinator that was killed leaves open what its successor answers."""
    open_: dict[str, Entry] = {}
    seen: set[str] = set()
    for entry in history.named("request", "answered"):
        number = text(entry.event, "id")
        if entry.name == "request":
            if number in seen:
                opinion.find(f"request {number} came twice", "its number is used again", index=entry.index, t=entry.t)
            seen.add(number)
            open_[number] = entry
            continue
        asked = open_.pop(number, None)
        if asked is None:
            why = "it had been answered before" if number in seen else "nobody had asked"
            opinion.find(f"request {number} was answered", why, index=entry.index, t=entry.t)
        elif text(entry.event, "outcome") == "done":
            _judge_done(history, asked, entry, opinion)
    if history.is_open:  # it runs, or it was killed, and another coordinator will answer
        return
    end = history.lives[-1].end
    for number, asked in open_.items():
        what = f"request {number} ({_name(asked)}) was never answered"
        opinion.find(what, f"the job {end.name if end is not None else 'ended'}", index=asked.index, t=asked.t)


def _judge_done(history: History, asked: Entry, answer: Entry, opinion: Opinion) -> None:
    if text(asked.event, "request") == "checkpoint" and not any(
        asked.index < entry.index <= answer.index for entry, _ in history.checkpoints
    ):
        # One that was being written may have come just before it was asked for, but not without an event at all. After
        # a return to a checkpoint that one is there.
        rewound, begun = history.last_rewind(asked.index)
        step = max((one.step for one in history.steps if rewound < one.entry.index < asked.index), default=begun)
        if not any(at >= step and entry.index < asked.index for entry, at in history.checkpoints):
            what = f"request {text(asked.event, 'id')} (checkpoint) was answered as done"
            opinion.find(what, "no checkpoint was published", index=answer.index, t=answer.t)


def _judge_stopped(history: History, stopped: Entry, opinion: Opinion) -> None:
    if was_impatient(stopped):
        return
    since, step = history.last_rewind(stopped.index)
    reached = max((one.step for one in history.steps if since < one.entry.index < stopped.index), default=step)
    reached = max(reached, whole(stopped.event, "step") or 0)
    kept = max((at for entry, at in history.checkpoints if since < entry.index < stopped.index), default=step)
    if kept < reached:
        what = f"stopped at step {reached} with a checkpoint of step {kept}" if kept else f"stopped at step {reached}"
        lost = "one sealed step is lost" if reached - kept == 1 else f"{reached - kept} sealed steps are lost"
        why = lost if kept else "without a checkpoint"
        opinion.find(what, why, index=stopped.index, t=stopped.t)


def _judge_record(history: History, record: Record, opinion: Opinion) -> None:
    for asked in record.asked:
        name = f"{asked.request} {asked.target}".strip()
        name = f"{name[:40]}..." if len(name) > 43 else name
        if asked.absurd and asked.ok:
            opinion.find(f"{name} was accepted", "no job can do that", t=asked.t)
        elif asked.ok is None and _was_there(history, asked.t, asked.t + asked.seconds, record):
            opinion.find(f"{name} got no answer in {asked.seconds:.1f} s", f"{asked.error}", t=asked.t)
    accepted = sum(bool(asked.ok) for asked in record.asked)
    written = sum(1 for _ in history.named("request"))
    if written and accepted > written:  # older coordinators write down none
        opinion.find(f"{accepted} requests were accepted", f"the log has {written}")


def _was_there(history: History, start: float, end: float, record: Record) -> bool:
    """A coordinator ran all that time, by what was done to it."""
    hurt = ("kill_coordinator", "stop_coordinator", "interrupt")
    if any(deed.what in hurt and deed.t < end + 1.0 and deed.t > start - 30.0 for deed in record.deeds):
        return False
    living = [life for life in history.lives if life.entries[0].t <= start]
    return bool(living) and (living[-1].end is None or living[-1].end.t > end)


def _name(asked: Entry) -> str:
    return f"{text(asked.event, 'request')} {text(asked.event, 'target')}".strip()[:60]
