"""A log as the checker reads it: in the order in which it was written, by coordinator, with its steps and beginnings.

Events that are not known, and fields that make no sense, are passed over. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from isoscale.analysis.promises.values import Limits
from isoscale.timelines.fields import Event, ExecutorId, executor_of, instant, items, number, seconds, text, whole

__all__ = ["ENDS", "Beginning", "Committed", "End", "Entry", "Generation", "History", "Life", "members_of"]

ENDS = ("finished", "stopped", "failed")
#: reasons of a generation whose members have no state but a checkpoint's
_BEGINS = ("started", "resumed")


@dataclass(frozen=True, slots=True)
class Entry:
    """One event: its place in the log, its time, its name."""

    index: int
    t: float
    name: str
    event: Event


@dataclass(slots=True)
class Life:
    """One coordinator, from its first event to its last."""

    number: int
    entries: list[Entry] = field(default_factory=list)
    term: int | None = None
    end: Entry | None = None

    @property
    def is_told(self) -> bool:
        """Its beginning is in the log, with the settings that newer coordinators write down."""
        return bool(self.entries) and isinstance(self.entries[0].event.get("settings"), Mapping)


@dataclass(frozen=True, slots=True)
class Generation:
    entry: Entry
    number: int
    step: int
    members: tuple[ExecutorId, ...]
    reason: str
    life: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """A generation that began at a checkpoint, or at step 0; `restart` is the event that announced it, if one did."""

    generation: Generation
    restart: Entry | None

    @property
    def step(self) -> int:
        return self.generation.step


@dataclass(frozen=True, slots=True)
class Committed:
    """A step, as the log has it."""

    entry: Entry
    step: int
    epoch: int | None
    #: as it was written: a number, a word for one that is not finite, or None
    loss: Any
    seconds: float | None
    generation: int | None
    life: int
    #: its place in a pass over a loader, "" in older logs, and how many steps the pass has, 0 if unknown
    loader: str
    batch: int
    of: int


@dataclass(frozen=True, slots=True)
class End:
    """The last that was heard of an executor."""

    entry: Entry
    #: lost or left
    how: str
    reason: str
    pid: int | None


class History:
    def __init__(
        self,
        events: Iterable[Event],
        *,
        settings: Mapping[str, Any] | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> None:
        """`settings` are used where the log does not tell them; `summary` is the run's, if there is one."""
        self.entries = list(_entries(events))
        self.summary = summary or {}
        self.lives = _lives(self.entries)
        told = next((life.entries[0].event["settings"] for life in reversed(self.lives) if life.is_told), None)
        self.limits = Limits.of(told or settings or {})
        self._life_of = {entry.index: life.number for life in self.lives for entry in life.entries}

    @property
    def is_deterministic(self) -> bool:
        """A step that is done again gives the same bits, by the level that the job was started with."""
        job = self.summary.get("job")
        levels = [text(life.entries[0].event, "determinism") for life in self.lives]
        levels.append(text(job, "determinism") if isinstance(job, Mapping) else "")
        return "off" not in levels

    @property
    def spawns(self) -> bool:
        """Coordinators start executors that are missing."""
        return all(life.entries[0].event["settings"].get("spawn", True) for life in self.lives if life.is_told)

    def named(self, *names: str) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry.name in names)

    def life_of(self, entry: Entry) -> Life:
        return self.lives[self._life_of[entry.index]]

    @property
    def is_open(self) -> bool:
        """The last coordinator has not said that the job is over: it runs, or was killed."""
        return not self.lives or self.lives[-1].end is None

    @property
    def is_told(self) -> bool:
        """Every coordinator was one of those that write down all that is needed here."""
        return bool(self.lives) and all(life.is_told for life in self.lives)

    @cached_property
    def steps(self) -> list[Committed]:
        return [
            Committed(
                entry=entry,
                step=step,
                epoch=whole(entry.event, "epoch"),
                loss=entry.event.get("loss"),
                seconds=seconds(entry.event, "seconds"),
                generation=whole(entry.event, "generation"),
                life=self._life_of[entry.index],
                loader=text(entry.event, "loader"),
                batch=whole(entry.event, "batch") or 0,
                of=whole(entry.event, "of") or 0,
            )
            for entry in self.named("step")
            if (step := whole(entry.event, "step")) is not None
        ]

    @cached_property
    def generations(self) -> list[Generation]:
        found = []
        for entry in self.named("generation"):
            found.append(
                Generation(
                    entry=entry,
                    number=whole(entry.event, "generation") or 0,
                    step=whole(entry.event, "step") or 0,
                    members=members_of(entry.event),
                    reason=text(entry.event, "reason"),
                    life=self._life_of[entry.index],
                )
            )
        return found

    @cached_property
    def beginnings(self) -> list[Beginning]:
        """The first is the job's own, unless the log begins later."""
        found: list[Beginning] = []
        restarts = list(self.named("restart"))
        before: tuple[ExecutorId, ...] = ()
        at = -1
        for one in self.generations:
            if one.reason in _BEGINS and not set(one.members) & set(before):
                told = [r for r in restarts if at < r.index < one.entry.index and self._life_of[r.index] == one.life]
                found.append(Beginning(one, told[-1] if told else None))
            before, at = one.members, one.entry.index
        return found

    def last_rewind(self, before: int) -> tuple[int, int]:
        """Where a job went back to a checkpoint for the last time before an event, and to which step; -1 if never."""
        found = [(one.generation.entry.index, one.step) for one in self.beginnings]
        found += [(entry.index, whole(entry.event, "step") or 0) for entry in self.named("restart")]
        return max((one for one in found if one[0] < before), default=(-1, 0))

    @cached_property
    def ends(self) -> dict[ExecutorId, list[End]]:
        """By executor: when it was lost, or left."""
        found: dict[ExecutorId, list[End]] = {}
        for entry in self.named("executor_lost", "executor_left"):
            executor = executor_of(entry.event)
            if executor is not None:
                how = entry.name.removeprefix("executor_")
                end = End(entry, how, text(entry.event, "reason"), whole(entry.event, "pid"))
                found.setdefault(executor, []).append(end)
        return found

    @cached_property
    def checkpoints(self) -> list[tuple[Entry, int]]:
        """Those that a job can go on from, with their steps."""
        return [
            (entry, step)
            for entry in self.named("checkpoint")
            if (step := whole(entry.event, "step")) is not None and text(entry.event, "path").startswith("checkpoints")
        ]

    @cached_property
    def committed_at(self) -> list[float]:
        """When each of `steps` was committed, at the latest.

        A step is written down when a coordinator hears of it, which may be late: then as long after the step before it
        as its executor says that it took.
        """
        times: list[float] = []
        for one in self.steps:
            at = one.entry.t
            if times and one.seconds is not None and at - times[-1] > one.seconds + _LATE_S:
                at = times[-1] + one.seconds
            times.append(at)
        return times

    def away(self) -> list[tuple[float, float]]:
        """When there was no coordinator, or one that did not run, from and until, as far as the log tells."""
        found = []
        for before, after in zip(self.lives, self.lives[1:], strict=False):
            if before.end is None and before.entries:
                found.append((before.entries[-1].t, after.entries[0].t))
        for entry in self.named("coordinator_paused"):
            found.append((entry.t - (number(entry.event, "seconds") or 0.0), entry.t))
        return found


#: a step that is written down so much later than it should have been was kept back
_LATE_S = 0.5


def members_of(event: Event) -> tuple[ExecutorId, ...]:
    """Of a generation."""
    ids = (executor_of({"executor": member}) for member in items(event, "members"))
    return tuple(member for member in ids if member is not None)


def _entries(events: Iterable[Event]) -> Iterator[Entry]:
    latest = 0.0
    for index, event in enumerate(events):
        t, name = instant(event), event.get("event")
        latest = latest if t is None else t
        if isinstance(name, str):
            yield Entry(index, latest, name, event)


def _lives(entries: list[Entry]) -> list[Life]:
    lives: list[Life] = []
    for entry in entries:
        if not lives or entry.name == "coordinator_started":
            term = whole(entry.event, "term") if entry.name == "coordinator_started" else None
            lives.append(Life(number=len(lives), term=term))
        lives[-1].entries.append(entry)
        if entry.name in ENDS and lives[-1].end is None:
            lives[-1].end = entry
    return lives
