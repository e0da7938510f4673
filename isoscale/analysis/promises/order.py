"""The log tells one story: numbers only grow, only those who are there take part, and it ends once."""

from __future__ import annotations

from isoscale.analysis.promises.history import ENDS, Committed, Entry, Generation, History, members_of
from isoscale.analysis.promises.values import Opinion, Record
from isoscale.analysis.promises.words import count, numbers_text
from isoscale.timelines.fields import ExecutorId, executor_of, text, whole

__all__ = ["judge"]

#: what happens only while a job runs
_RUNS = ("step", "generation", "rescale", "executor_started", "executor_joined", "restart", "executor_lost")


def judge(history: History, record: Record | None) -> Opinion:
    del record
    opinion = Opinion("order")
    _judge_terms(history, opinion)
    _judge_generations(history, opinion)
    _judge_presence(history, opinion)
    _judge_ends(history, opinion)
    terms = sum(life.term is not None for life in history.lives)
    seen = {"generation": len(history.generations), "coordinator": terms, "executor": len(_known(history))}
    opinion.seen = ", ".join(count(number, noun) for noun, number in seen.items() if number)
    if history.entries and not history.generations:
        opinion.cannot_tell("the log has no generations")
    return opinion


def _judge_terms(history: History, opinion: Opinion) -> None:
    last: int | None = None
    for life in history.lives:
        if life.term is None:
            continue
        if last is not None and life.term <= last:
            entry = life.entries[0]
            opinion.find(
                f"a coordinator of term {life.term}", f"there had been term {last}", index=entry.index, t=entry.t
            )
        last = life.term


def _judge_generations(history: History, opinion: Opinion) -> None:
    """Within a coordinator's life numbers grow. A new one may announce the generation that it found."""
    begins = {one.generation.entry.index for one in history.beginnings}
    before: Generation | None = None
    for one in history.generations:
        found = before is not None and one.life != before.life
        if before is not None and one.number <= before.number and not (found and one.entry.index in begins):
            same = found and one.number == before.number and set(one.members) == set(before.members)
            if not same:
                what = f"generation {one.number} began"
                opinion.find(what, f"there had been {before.number}", index=one.entry.index, t=one.entry.t)
        before = one
    told = {(one.life, one.number) for one in history.generations}
    highest: dict[int, int] = {}
    for one in history.generations:
        highest[one.life] = max(highest.get(one.life, 0), one.number)
    newest = 0
    for step in history.steps:
        number = step.generation
        if number is None or not told:
            continue
        known = any((life, number) in told for life in range(step.life + 1))
        # Executors may have gone over, and sealed a step, when a loss made the coordinator begin a recovery instead. If
        # that one goes on without them they train until they are told to leave, beside those who recovered.
        there = [one.number for one in history.generations if _is_before(one, step)]
        overtaken = any(one > number for one in there) and (number >= newest or number > max(there[:-1], default=0))
        newest = max(newest, number)
        if not known and not overtaken and number <= highest.get(step.life, 0):
            what = f"step {step.step} is of generation {number}"
            opinion.find(what, "nobody announced it", index=step.entry.index, t=step.entry.t)


def _is_before(generation: Generation, step: Committed) -> bool:
    """In the same coordinator's life."""
    return generation.life == step.life and generation.entry.index < step.entry.index


def _judge_presence(history: History, opinion: Opinion) -> None:
    gone: dict[ExecutorId, Entry] = {}
    there: set[ExecutorId] = set()
    processes = any(True for _ in history.named("executor_started"))
    for entry in history.entries:
        if entry.name in ENDS:
            there.clear()  # they end with the coordinator
        executor = executor_of(entry.event)
        if entry.name in ("executor_started", "executor_joined", "executor_speed") and executor is not None:
            if executor in gone:
                what = f"executor {executor} is there again ({entry.name})"
                how = f"it was gone: {text(gone[executor].event, 'reason') or gone[executor].name}"
                opinion.find(what, how, index=entry.index, t=entry.t)
                gone.pop(executor)
            if entry.name != "executor_speed":
                there.add(executor)
        elif entry.name in ("executor_lost", "executor_left") and executor is not None:
            gone[executor] = entry
            there.discard(executor)
        elif entry.name == "generation":
            absent = [member for member in members_of(entry.event) if member not in there]
            if absent and processes:
                what = f"generation {whole(entry.event, 'generation')} has executor {numbers_text(absent)}"
                why = "lost before" if all(one in gone for one in absent) else "nobody had started it"
                opinion.find(what, why, index=entry.index, t=entry.t)


def _judge_ends(history: History, opinion: Opinion) -> None:
    #: by step: a job that was resumed beyond its end ends again
    digests: dict[int | None, dict[str, Entry]] = {}
    for life in history.lives:
        for entry in life.entries:
            if life.end is None or entry.index <= life.end.index:
                continue
            if entry.name in ENDS:
                what = f"the job {entry.name}"
                opinion.find(what, f"it had {life.end.name} before", index=entry.index, t=entry.t)
            elif entry.name in _RUNS:
                what = f"{entry.name} after the job had {life.end.name}"
                opinion.find(what, "that is the last event of a coordinator", index=entry.index, t=entry.t)
        if life.end is not None and life.end.name == "finished":
            digests.setdefault(whole(life.end.event, "step"), {})[text(life.end.event, "digest")] = life.end
    summary = text(history.summary, "digest")
    if summary and not history.is_open and history.lives[-1].end is not None:
        end = history.lives[-1].end
        if end.name == "finished":
            digests.setdefault(whole(end.event, "step"), {})[summary] = end
    for found in digests.values():
        if len(found) > 1:
            shown = numbers_text(digest[:16] for digest in found)
            opinion.find("finished with several digests", shown, index=list(found.values())[-1].index)


def _known(history: History) -> set[ExecutorId]:
    found = (executor_of(entry.event) for entry in history.named("executor_started", "executor_joined"))
    return {executor for executor in found if executor is not None}
