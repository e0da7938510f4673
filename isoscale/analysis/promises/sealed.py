"""No sealed step is done again while an executor that saw it sealed is alive and has not been let go."""

from __future__ import annotations

from isoscale.analysis.promises.history import Beginning, Entry, Generation, History
from isoscale.analysis.promises.killed import by_mistake
from isoscale.analysis.promises.values import Opinion, Record
from isoscale.analysis.promises.words import count, steps_text
from isoscale.timelines.fields import ExecutorId, executor_of, text, whole

__all__ = ["judge", "was_impatient"]


def judge(history: History, record: Record | None) -> Opinion:
    opinion = Opinion("sealed")
    highest, redone, first = 0, 0, True
    beginnings = {one.generation.entry.index: one for one in history.beginnings}
    mistakes = set(by_mistake(history, record))
    for entry in history.named("generation", "restart", "step"):
        begun = beginnings.get(entry.index)
        step = whole(entry.event, "step") or 0
        if entry.name == "step":
            highest = max(highest, step)
        elif entry.name == "restart" or begun is not None:
            if not first and step < highest:
                redone += 1
                _judge_one(history, record, entry, (step, highest), mistakes, opinion)
            highest, first = step, False
        if begun is not None:
            _judge_checkpoint(history, begun, opinion)
    back = f", went back to a checkpoint {count(redone, 'time')}" if redone else ""
    opinion.seen = f"{count(len(history.steps), 'step')}{back}"
    return opinion


def _judge_one(
    history: History,
    record: Record | None,
    at: Entry,
    between: tuple[int, int],
    mistakes: set[ExecutorId],
    opinion: Opinion,
) -> None:
    """Everybody who held the steps between is gone, and not by a mistake."""
    step, highest = between
    again = f"{steps_text(step + 1, highest)} done again"
    own = history.life_of(at)
    before = history.lives[own.number - 1] if own.number else None
    if before is not None and before.end is not None and own.entries[0].index > _last_step(history, at.index):
        # Its executors were ended with it, on request or because the script failed.
        if before.end.name == "stopped" and not was_impatient(before.end):
            opinion.find(again, "they were sealed when the job was stopped on request", index=at.index, t=at.t)
        return
    for executor in sorted(_holders(history, at.index, step), key=str):
        why = _why_not_gone(history, record, executor, at, mistakes, opinion)
        if why:
            opinion.find(again, f"executor {executor} {why}", index=at.index, t=at.t)
            return


def _why_not_gone(
    history: History,
    record: Record | None,
    executor: ExecutorId,
    at: Entry,
    mistakes: set[ExecutorId],
    opinion: Opinion,
) -> str:
    """What is wrong with the end of an executor that held the steps; "" if nothing is, or nobody can tell."""
    if any(end.entry.index < at.index for end in history.ends.get(executor, ())):
        return "held them, was alive, and was killed by mistake" if executor in mistakes else ""
    if _was_let_go(history, executor, at.index):
        return ""
    if history.life_of(at).number == _life_of_last_step(history, at.index):
        return "had sealed them and was not lost"
    if _appears(history, executor, at.index):
        return "had sealed them and was there again later"
    if record is None:
        opinion.cannot_tell("how executors ended that were lost while there was no coordinator")
        return ""
    hurt = _was_hurt(history, record, executor, at.t)
    return "" if hurt else "had sealed them, and nobody had done anything to it"


def _judge_checkpoint(history: History, begun: Beginning, opinion: Opinion) -> None:
    """It is the newest one that was published, unless that one was damaged, which is said."""
    at = begun.generation.entry
    published = [(entry, step) for entry, step in history.checkpoints if entry.index < at.index]
    # Of those written in a history that was given up only the one counts that was begun at.
    rewound = max(
        (one.generation.entry.index for one in history.beginnings if one.generation.entry.index < at.index), default=-1
    )
    newest = max(
        (step for entry, step in published if entry.index > rewound),
        default=next((one.step for one in history.beginnings if one.generation.entry.index == rewound), 0),
    )
    if begun.step >= newest:
        return
    since = published[-1][0].index if published else -1
    warned = any(
        since < entry.index < at.index
        and "checkpoint" in text(entry.event, "message").lower()
        and "going on from" not in text(entry.event, "message")
        for entry in history.named("warning")
    )
    if not warned:
        what = f"began at {_place(begun.step)}, although there was a checkpoint of step {newest}"
        opinion.find(what, "no warning says that it was damaged", index=at.index, t=at.t)


def _place(step: int) -> str:
    return f"the checkpoint of step {step}" if step else "the beginning"


def _holders(history: History, at: int, step: int) -> set[ExecutorId]:
    """Executors that held a step beyond that one: members when it was committed, and all that came to them."""
    since = max((one.entry.index for one in _begun(history) if one.entry.index < at), default=-1)
    first = next((one for one in history.steps if since < one.entry.index < at and one.step > step), None)
    if first is None:
        return set()
    of = [one for one in history.generations if since <= one.entry.index < at]
    held = next((n for n, one in enumerate(of) if (one.life, one.number) == (first.life, first.generation)), 0)
    return {member for one in of[held:] for member in one.members}


def _was_let_go(history: History, executor: ExecutorId, at: int) -> bool:
    """Others have sealed a step without it, so it was told to leave; its end may not be written yet."""
    of = [one for one in history.generations if one.entry.index < at]
    last = max((number for number, one in enumerate(of) if executor in one.members), default=-1)
    later = {(one.life, one.number) for one in of[last + 1 :]}
    return any((one.life, one.generation) in later for one in history.steps if one.entry.index < at)


def _begun(history: History) -> list[Generation]:
    return [one.generation for one in history.beginnings]


def _last_step(history: History, before: int) -> int:
    return max((one.entry.index for one in history.steps if one.entry.index < before), default=-1)


def _life_of_last_step(history: History, before: int) -> int:
    return next((one.life for one in reversed(history.steps) if one.entry.index < before), 0)


def was_impatient(stopped: Entry) -> bool:
    """Somebody wanted an end without a checkpoint, and was told what that costs."""
    return "without a checkpoint" in text(stopped.event, "error")


def _appears(history: History, executor: ExecutorId, after: int) -> bool:
    return any(
        entry.index > after and executor_of(entry.event) == executor
        for entry in history.named("executor_joined", "executor_speed", "executor_left")
    )


def _was_hurt(history: History, record: Record, executor: ExecutorId, before: float) -> bool:
    pids = {
        entry.event.get("pid") for entry in history.named("executor_started") if executor_of(entry.event) == executor
    }
    return executor in record.faulty or any(
        deed.t <= before
        and deed.what in ("kill", "stop", "notice", "slow", "interrupt")
        and (deed.executor == executor or deed.pid in pids or (deed.executor is None and deed.pid is None))
        for deed in record.deeds
    )
