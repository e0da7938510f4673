"""Nobody is killed who answered in time, and nobody is lost without a cause."""

from __future__ import annotations

import re

from isoscale.analysis.promises.history import End, Entry, History
from isoscale.analysis.promises.values import Opinion, Record
from isoscale.analysis.promises.words import count
from isoscale.timelines.fields import ExecutorId, executor_of, seconds, text

__all__ = ["by_mistake", "judge"]

_SILENT = re.compile(r"no heartbeat for ([0-9.]+) s|silent for ([0-9.]+) s")
#: it ended by itself
_EXIT = re.compile(r"exit code [0-9]+")
#: the system says that it does not run, so silence is no guess
_STOPPED = "stopped"
#: deeds that may end an executor
_DEADLY = ("kill", "stop", "notice", "slow", "kill_loaders", "interrupt")
#: clocks are read one after the other
_SLACK_S = 0.25


def judge(history: History, record: Record | None) -> Opinion:
    opinion = Opinion("killed")
    mistakes = by_mistake(history, record)
    losses = [(executor, end) for executor, ends in history.ends.items() for end in ends if end.how == "lost"]
    for entry, why in mistakes.values():
        who = executor_of(entry.event)
        opinion.find(f"executor {who} was killed", why, index=entry.index, t=entry.t)
    if not history.is_told and any(_SILENT.search(end.reason) for _, end in losses):
        opinion.cannot_tell("the log is of a version that does not write down why it killed whom")
    if record is not None:
        for executor, end in losses:
            if executor not in mistakes and not _explained(history, record, executor, end):
                what = f"executor {executor} was lost: {end.reason}"
                opinion.find(what, "nobody had done anything to it", index=end.entry.index, t=end.entry.t)
    kills = sum(1 for _ in history.named("executor_killed"))
    by_us = f", {kills} of them killed by the coordinator" if kills else ""
    opinion.seen = f"{count(len(losses), 'executor')} lost{by_us}"
    return opinion


def by_mistake(history: History, record: Record | None) -> dict[ExecutorId, tuple[Entry, str]]:
    """Executors that a coordinator killed for a silence of its own making, and how that shows."""
    found: dict[ExecutorId, tuple[Entry, str]] = {}
    told: set[ExecutorId] = set()
    for entry in history.named("executor_killed"):
        executor = executor_of(entry.event)
        silent, limit = seconds(entry.event, "silent_s"), seconds(entry.event, "limit_s")
        if executor is None:
            continue
        told.add(executor)
        if silent is None or limit is None or text(entry.event, "reason").startswith(_STOPPED):
            continue
        why = f"silent for {silent:.1f} s of {limit:g} s" if silent <= limit else ""
        why = why or _was_heard(history, record, executor, entry, silent, limit)
        if why:
            found[executor] = (entry, why)
    for executor, ends in history.ends.items():  # logs that do not tell of kills, but of silences
        for end in ends:
            match = _SILENT.search(end.reason)
            if match is None or executor in told:
                continue
            limit = history.limits.lost_after_s
            why = _was_heard(history, record, executor, end.entry, float(match[1] or match[2]), limit)
            if why:
                found[executor] = (end.entry, why)
    return found


def _was_heard(
    history: History, record: Record | None, executor: ExecutorId, at: Entry, silent: float, limit: float | None
) -> str:
    """Why a silence was none; "" if nothing speaks against it."""
    pauses = [*history.away(), *(record.pauses() if record is not None else ())]
    for start, end in pauses:
        since = at.t - end
        if not -_SLACK_S <= since < silent:
            continue
        # Who was silent for so long when the pause ended would have been killed before it, or was given no time.
        before, allowed = silent - since, silent / 2 if limit is None else limit
        if since < allowed - _SLACK_S and before > allowed + _SLACK_S:
            paused = f"the coordinator itself had not run for {end - start:.1f} s"
            return f"{paused} until {max(0.0, since):.1f} s before, and the limit is {allowed:g} s"
    # One on another machine may train on while its coordinator does not hear it.
    is_here = any(executor_of(entry.event) == executor for entry in history.named("executor_started"))
    last = _last_sealed(history, executor, at) if is_here else None
    if last is not None and at.t - last[1] < silent / 2:
        step, t = last
        return f"silent for {silent:.1f} s, but {at.t - t:.1f} s before it had sealed step {step}"
    return ""


def _last_sealed(history: History, executor: ExecutorId, at: Entry) -> tuple[int, float] | None:
    """The last step before that event which needed this executor, and when it was committed."""
    life = history.life_of(at).number
    members = {(one.life, one.number): one.members for one in history.generations}
    for one, t in zip(reversed(history.steps), reversed(history.committed_at), strict=True):
        if one.entry.index < at.index and one.life == life and one.generation is not None:
            return (one.step, t) if executor in members.get((one.life, one.generation), ()) else None
    return None


def _explained(history: History, record: Record, executor: ExecutorId, end: End) -> bool:
    if executor in record.faulty or any(
        executor_of(entry.event) == executor and entry.index < end.entry.index
        for entry in history.named("executor_killed", "suspect", "notice")
    ):
        return True
    for deed in record.deeds:
        mine = deed.executor == executor or (deed.pid is not None and deed.pid == end.pid)
        everybody = deed.executor is None and deed.pid is None
        if deed.what in _DEADLY and (mine or everybody) and deed.t <= end.entry.t + _SLACK_S:
            return True
    if _EXIT.search(end.reason) and not record.is_sound:
        return True
    # Older logs tell of kills on the coordinator's own judgement only here.
    return bool(_SILENT.search(end.reason)) or end.reason.startswith((_STOPPED, "kept the others waiting"))
