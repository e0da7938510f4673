"""A job that gets nowhere gives up: it does not begin again for ever at the same step."""

from __future__ import annotations

from isoscale.analysis.promises.history import History
from isoscale.analysis.promises.values import Opinion, Record
from isoscale.analysis.promises.words import count
from isoscale.timelines.fields import whole

__all__ = ["MAX_BEGINNINGS", "judge"]

#: beginnings in a row, by one coordinator, none of which came beyond the highest step of all
MAX_BEGINNINGS = 5


def judge(history: History, record: Record | None) -> Opinion:
    del record
    opinion = Opinion("progress")
    begins = {one.generation.entry.index for one in history.beginnings[1:]}
    highest = in_a_row = most = 0
    for entry in history.named("coordinator_started", "generation", "step"):
        if entry.name == "coordinator_started":
            in_a_row = 0  # a person wanted it
        elif entry.name == "step":
            step = whole(entry.event, "step") or 0
            if step > highest:
                highest, in_a_row = step, 0
        elif entry.index in begins:
            in_a_row += 1
            most = max(most, in_a_row)
            if in_a_row == MAX_BEGINNINGS + 1:
                what = f"began again {in_a_row} times without coming beyond step {highest}"
                opinion.find(what, "it should have been given up", index=entry.index, t=entry.t)
    opinion.seen = f"began again at most {count(most, 'time')} in a row" if most else "never began again"
    return opinion
