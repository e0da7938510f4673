"""Every sample once: committed steps follow one another, batches too, and a step that is done again is the same."""

from __future__ import annotations

import re
from typing import Any

from isoscale.analysis.promises.history import Committed, History
from isoscale.analysis.promises.values import Opinion, Record
from isoscale.analysis.promises.words import count
from isoscale.timelines.fields import text, whole

__all__ = ["judge"]

#: without a coordinator executors remember about so many steps: more may be gone from the log and yet have been done
_FORGOTTEN = 200
#: a job that is resumed with other arguments, or another script, says so
_CHANGED = re.compile("the checkpoint was written")


def judge(history: History, record: Record | None) -> Opinion:
    del record
    opinion = Opinion("samples")
    begins = {one.generation.entry.index: one.step for one in history.beginnings}
    expected: int | None = None
    first: dict[int, Committed] = {}
    final: dict[int, Committed] = {}
    steps = {one.entry.index: one for one in history.steps}
    adopted = False
    for entry in history.named("coordinator_started", "generation", "step", "code_changed", "warning"):
        if entry.name == "code_changed" or _CHANGED.search(text(entry.event, "message")):
            first = {}  # from here on it is another job, as somebody wanted
        adopted = adopted or (entry.name == "coordinator_started" and bool(final))
        if entry.index in begins:
            adopted, expected = False, begins[entry.index] + 1
            final = {step: one for step, one in final.items() if step < expected}
        elif entry.name == "generation" and not adopted and (whole(entry.event, "step") or 0) >= (expected or 0) > 0:
            # One that took over hears from its executors how far they are before it hears of their steps.
            what = f"a generation began at step {whole(entry.event, 'step')} where step {expected} was due"
            opinion.find(what, "steps are lost", index=entry.index, t=entry.t)
        one = steps.get(entry.index)
        if one is None:
            continue
        if expected is not None and one.step - expected > _FORGOTTEN:
            opinion.cannot_tell(f"steps {expected}-{one.step - 1} were not written down")
        elif expected is not None and one.step != expected:
            what = f"step {one.step} was written down where step {expected} was due"
            why = "steps are lost" if one.step > expected else "it is doubled or out of order"
            opinion.find(what, why, index=entry.index, t=entry.t)
        if history.is_deterministic:
            _judge_again(first.setdefault(one.step, one), one, opinion)
        final[one.step] = one
        expected = one.step + 1
    _judge_passes([final[step] for step in sorted(final)], opinion)
    _judge_streams(history, opinion)
    _judge_end(history, final, opinion)
    if history.steps and not any(one.loader for one in history.steps):
        opinion.cannot_tell("the log is of a version that does not write down which batch a step was")
    again = len(history.steps) - len({one.step for one in history.steps})
    opinion.seen = count(len(final), "step") + (f", {again} of them done again" if again else "")
    return opinion


def _judge_again(before: Committed, one: Committed, opinion: Opinion) -> None:
    if before is one:
        return
    for name in ("loss", "epoch", "loader", "batch"):
        then, now = getattr(before, name), getattr(one, name)
        if then != now:
            what = f"step {one.step} was done again with another {name}"
            opinion.find(what, f"{_short(now)} is not {_short(then)}", index=one.entry.index, t=one.entry.t)


def _judge_passes(steps: list[Committed], opinion: Opinion) -> None:
    """Batches of a pass in order, none twice; passes may end early, for a script may break off."""
    place: dict[str, Committed] = {}
    epoch: int | None = None
    for one in steps:
        if one.epoch is not None:
            if epoch is not None and one.epoch < epoch:
                what = f"step {one.step} is of epoch {one.epoch}"
                opinion.find(what, f"epoch {epoch} had begun", index=one.entry.index, t=one.entry.t)
            epoch = one.epoch
        if not one.loader:
            continue
        before = place.get(one.loader)
        follows = before is not None and before.step < one.step and one.batch == before.batch + 1
        if one.batch and not follows and (before is not None or one.step == 1):
            what = f"step {one.step} read batch {one.batch} of {one.loader}"
            why = f"batch {before.batch} came before it" if before is not None else "nothing came before it"
            opinion.find(what, why, index=one.entry.index, t=one.entry.t)
        elif one.of and one.batch >= one.of:
            what = f"step {one.step} read batch {one.batch} of {one.loader}"
            opinion.find(what, f"a pass has {one.of}", index=one.entry.index, t=one.entry.t)
        place[one.loader] = one


def _judge_streams(history: History, opinion: Opinion) -> None:
    """The samples of a whole pass over a stream, and their ledger, are those of every other pass that began with as
    much carried in and left as much out."""
    passes: dict[tuple[Any, ...], tuple[int | None, str]] = {}
    for entry in history.named("pass_ended"):
        stream, samples = text(entry.event, "stream"), whole(entry.event, "samples")
        rest = text(entry.event, "rest"), text(entry.event, "carried_in")
        if rest not in (("0", "0"), ("0", ""), ("", "0"), ("", "")):
            continue
        found = samples, text(entry.event, "content")
        expected = passes.setdefault((stream,), found)
        if found != expected:
            what = f"a pass over {stream} used {found[0]} samples, ledger {found[1] or 'none'}"
            why = f"an earlier one used {expected[0]}, ledger {expected[1] or 'none'}"
            opinion.find(what, why, index=entry.index, t=entry.t)


def _judge_end(history: History, final: dict[int, Committed], opinion: Opinion) -> None:
    for entry in history.named("finished"):
        step = whole(entry.event, "step")
        last = max((one.step for one in history.steps if one.entry.index < entry.index), default=None)
        if step is not None and last is not None and step != last:
            opinion.find(f"finished at step {step}", f"the last step was {last}", index=entry.index, t=entry.t)


def _short(value: Any) -> str:
    return repr(value)[:24]
