"""From events to the lives of executors: when each process lived, what it hosted, how fast it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from isoscale.timelines.fields import Event, ExecutorId, executor_of, seconds, text, whole
from isoscale.timelines.marks import ENDS
from isoscale.timelines.placements import Generation, Timed, in_order
from isoscale.timelines.values import Completion, Life, Stay

__all__ = ["lives"]


@dataclass(slots=True)
class _Draft:
    executor: ExecutorId
    started: float
    pid: int | None = None
    kind: str = ""
    joined: float | None = None
    ended: float | None = None
    ending: Completion = ""
    reason: str = ""
    stays: list[Stay] = field(default_factory=list)
    #: where a stay began that has not ended, and what it hosts
    hosting: tuple[float, int, tuple[int, int] | None] | None = None
    #: when a generation began without it
    dropped: float | None = None
    #: sums over steps of (value * steps) and of steps, by field
    speed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))

    def host(self, t: float, generation: int, block: tuple[int, int] | None) -> None:
        self.dropped = None
        self.joined = t if self.joined is None else self.joined
        if self.hosting is None or self.hosting[2] != block:
            self.release(t)
            self.hosting = (t, generation, block)

    def release(self, t: float) -> None:
        if self.hosting is not None:
            start, generation, block = self.hosting
            first, last = block or (None, None)
            self.stays.append(Stay(start=start, end=max(t, start), first=first, last=last, generation=generation))
            self.hosting = None

    def end(self, t: float, ending: Completion, reason: str = "") -> None:
        self.release(t)
        self.ended, self.ending, self.reason = t, ending, reason

    def measure(self, event: Event) -> None:
        steps = seconds(event, "steps") or 1.0
        for name in ("turn_s", "exchange_s", "step_s", "idle"):
            value = seconds(event, name)
            if value is not None:
                # Idle shares are weighted by time, durations by steps.
                weight = steps * (seconds(event, "step_s") or 1.0) if name == "idle" else steps
                self.speed[name][0] += value * weight
                self.speed[name][1] += weight

    def mean(self, name: str) -> float | None:
        total, weight = self.speed.get(name, (0.0, 0.0))
        return total / weight if weight > 0 else None

    def life(self, end: float) -> Life:
        self.release(end)
        idle, step_s, exchange_s = self.mean("idle"), self.mean("step_s"), self.mean("exchange_s")
        if idle is None and step_s and exchange_s is not None:
            idle = exchange_s / step_s
        if self.ended is None and self.dropped is not None:
            # Placed elsewhere and never heard of again: it went then.
            self.ended, self.ending = self.dropped, "left"
        return Life(
            executor=self.executor,
            pid=self.pid,
            kind=self.kind,
            started=self.started,
            joined=self.joined,
            ended=end if self.ended is None else self.ended,
            ending=self.ending,
            reason=self.reason,
            stays=tuple(self.stays),
            turn_s=self.mean("turn_s"),
            exchange_s=exchange_s,
            step_s=step_s,
            idle=None if idle is None else min(idle, 1.0),
        )


def lives(events: Sequence[Timed], placements: Sequence[Generation], end: float) -> tuple[Life, ...]:
    """By executor, then by time. `end` is the end of the log."""
    drafts: dict[ExecutorId, list[_Draft]] = {}
    # A generation begins after what was logged in the same instant.
    merged: list[tuple[float, int, Event | Generation]] = [(t, 0, event) for t, event in events]
    merged += [(one.t, 1, one) for one in placements]
    for t, _, entry in sorted(merged, key=lambda item: item[:2]):
        if isinstance(entry, Generation):
            _place(drafts, entry)
        elif entry["event"] in ENDS:
            for draft in _alive(drafts):
                draft.end(t, "ended")
        else:
            _one(drafts, t, entry)
    every = sorted((d for of in drafts.values() for d in of), key=lambda d: (in_order(d.executor), d.started))
    return tuple(draft.life(end) for draft in every)


def _one(drafts: dict[ExecutorId, list[_Draft]], t: float, event: Event) -> None:
    executor, name = executor_of(event), event["event"]
    if executor is None or not name.startswith("executor_"):
        return
    draft, pid = _current(drafts, executor), whole(event, "pid")
    if name == "executor_started":
        if draft is None or (pid is not None and draft.pid not in (None, pid)):
            if draft is not None:  # its end was not seen: everything had died
                draft.end(t if draft.dropped is None else draft.dropped, "lost", "ended without a word")
            draft = _begin(drafts, executor, t)
        draft.pid, draft.kind = pid, text(event, "kind")
    elif name == "executor_joined":
        draft = draft or _begin(drafts, executor, t)
        draft.joined = t if draft.joined is None else draft.joined
    elif name == "executor_speed" and draft:
        draft.measure(event)
    elif name in ("executor_left", "executor_lost"):
        ending: Completion = "left" if name == "executor_left" else "lost"
        if draft is not None:
            draft.pid = draft.pid or pid
            draft.end(t, ending, text(event, "reason"))


def _place(drafts: dict[ExecutorId, list[_Draft]], one: Generation) -> None:
    blocks = one.blocks()
    for draft in _alive(drafts):
        if draft.executor not in blocks and draft.hosting is not None:
            draft.release(one.t)
            draft.dropped = one.t
    for member, block in blocks.items():
        (_current(drafts, member) or _begin(drafts, member, one.t)).host(one.t, one.generation, block)


def _begin(drafts: dict[ExecutorId, list[_Draft]], executor: ExecutorId, t: float) -> _Draft:
    drafts.setdefault(executor, []).append(_Draft(executor, t))
    return drafts[executor][-1]


def _current(drafts: dict[ExecutorId, list[_Draft]], executor: ExecutorId) -> _Draft | None:
    of = drafts.get(executor)
    return of[-1] if of and of[-1].ended is None else None


def _alive(drafts: dict[ExecutorId, list[_Draft]]) -> list[_Draft]:
    return [of[-1] for of in drafts.values() if of[-1].ended is None]
