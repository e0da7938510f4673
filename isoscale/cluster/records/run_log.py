"""A run's `events.jsonl`, read once and then as it grows: every series in buckets, and the events that tell its story.

A line is parsed once. What is kept is bounded whatever the log's length: `Buckets` of each series, a limited number of
other events, and where in the file which steps are, so that a close look reads those lines only.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from isoscale.cluster.records.buckets import Buckets
from isoscale.protocol.files import open_regular
from isoscale.timelines.fields import instant, number, seconds, whole

__all__ = ["NOT_LOGGED", "RunLog", "Series", "Source", "Stretch"]

#: step: what every step tells · log: what the script logged · batch: changes of the batch size
Source = str

_CHUNK = 2**18
#: of one line; a longer one is passed over
_MAX_LINE = 16 * 2**20
MAX_SERIES = 64
_MAX_BAD = 100
_MAX_STORY, _MAX_CHATTER = 20_000, 2_000
#: fields of an event `log` that no script logged
NOT_LOGGED = frozenset({"t", "event", "step", "epoch", "job"})
#: events of which the newest suffice
_CHATTER = frozenset(
    {"audit", "checkpoint", "warning", "output_cut", "request", "answered", "partitions", "pass_ended"}
)
_STEP_MARK = b'"event": "step"'
_MOST_STEPS = 2**53


class _Step(msgspec.Struct):
    event: str
    t: float
    step: int
    loss: float | str | None = None
    seconds: float | None = None
    executors: int | None = None
    generation: int | None = None
    noise_scale: float | None = None


_STEPS = msgspec.json.Decoder(list[_Step])


@dataclass(slots=True)
class Series:
    name: str
    source: Source
    buckets: Buckets = field(default_factory=Buckets)
    last: float | None = None
    last_x: float = -1.0
    #: values that are not finite: how many, and where the last ones were, as (step, seconds)
    num_bad: int = 0
    bad: collections.deque[tuple[float, float]] = field(default_factory=lambda: collections.deque(maxlen=_MAX_BAD))

    def extend(self, x: Sequence[float], t: Sequence[float], value: Sequence[float]) -> None:
        """Steps that fall mean that they are done again: what was known of them goes."""
        xs, ts, values = (np.asarray(one, dtype=np.float64) for one in (x, t, value))
        if not len(xs):
            return
        falls = np.flatnonzero(np.diff(np.concatenate([[self.last_x], xs])) < 0)
        for begin, end in zip([0, *falls], [*falls, len(xs)], strict=True):
            if begin < end:
                self._extend(xs[begin:end], ts[begin:end], values[begin:end])
        self.last_x = float(xs[-1])
        self.last = float(values[-1])

    def _extend(self, xs: Any, ts: Any, values: Any) -> None:
        if xs[0] < self.last_x:
            self.buckets.rewind(float(xs[0]))
        self.last_x = float(xs[-1])
        good = np.isfinite(values)
        if not good.all():
            self.num_bad += int((~good).sum())
            self.bad.extend(zip(xs[~good].tolist(), ts[~good].tolist(), strict=True))
        self.buckets.extend(xs[good], ts[good], values[good])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A piece of the file, and which steps are in it."""

    offset: int
    size: int
    first_step: float
    last_step: float
    first_s: float
    last_s: float


class RunLog:
    """Of one directory. Any thread may ask; one reads at a time."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "events.jsonl"
        self.lock = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        self._inode = 0
        #: bytes that are read; a line that is not complete is read when it is
        self.offset = 0
        self.size = 0
        self.series: dict[str, Series] = {}
        self.story: list[dict[str, Any]] = []
        self.is_cut = False
        self._chatter: collections.deque[dict[str, Any]] = collections.deque(maxlen=_MAX_CHATTER)
        self._speeds: dict[tuple[Any, Any], dict[str, Any]] = {}
        #: the first and the last step of each generation, and the first whose loss is not finite
        self._ends: dict[int | None, list[dict[str, Any]]] = {}
        self._diverged: dict[str, Any] | None = None
        self.stretches: list[Stretch] = []
        self.batches: list[dict[str, Any]] = []
        self.first: tuple[float, float] | None = None
        self.last: tuple[float, float] | None = None
        self.num_steps_redone = 0
        self.longest_gap_s = 0.0

    def update(self, budget_s: float = 1.0) -> None:
        """Read on, for so long at most."""
        until = time.monotonic() + budget_s
        with contextlib.suppress(OSError), open_regular(self._path) as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self.offset:
                self._forget()
                self._inode = found.st_ino
            self.size = found.st_size
            file.seek(self.offset)
            wanted = _CHUNK
            while self.offset < self.size:
                data = file.read(min(wanted, self.size - self.offset))
                end = data.rfind(b"\n") + 1
                if not end:
                    if not data or len(data) == self.size - self.offset:
                        return  # the last line is not complete
                    if wanted >= _MAX_LINE:
                        self.offset += len(data)  # nobody writes such a line
                        wanted = _CHUNK
                    else:
                        wanted *= 2
                    file.seek(self.offset)
                    continue
                self._take(data[:end])
                self.offset += end
                wanted = _CHUNK
                if time.monotonic() > until:
                    return
                file.seek(self.offset)

    @property
    def num_bytes(self) -> int:
        """About what it keeps in memory."""
        kept = sum(one.buckets.num_bytes for one in list(self.series.values()))
        return kept + 1_000 * (len(self.story) + len(self._chatter) + len(self._speeds) + len(self.stretches))

    def told(self) -> list[dict[str, Any]]:
        """Events from which a timeline is made: all but steps that say nothing of it."""
        steps = [event for ends in self._ends.values() for event in ends]
        odd = [self._diverged] if self._diverged is not None else []
        found = [*self.story, *self._chatter, *self._speeds.values(), *steps, *odd]
        return sorted(found, key=lambda event: instant(event) or 0.0)

    def raw_steps(self, begin: float, end: float, most_bytes: int) -> list[dict[str, Any]] | None:
        """Events `step` and `log` of steps in [begin, end] as they are written; None if that is too much to read."""
        chosen = [one for one in self.stretches if one.last_step >= begin and one.first_step <= end]
        if sum(one.size for one in chosen) > most_bytes:
            return None
        found = []
        with contextlib.suppress(OSError), open_regular(self._path) as file:
            for one in chosen:
                file.seek(one.offset)
                for line in file.read(one.size).split(b"\n"):
                    if event := _event(line):
                        step = number(event, "step")
                        if event["event"] in ("step", "log") and step is not None and begin <= step <= end:
                            found.append(event)
        return found

    # ---- one piece of the file ----

    def _take(self, data: bytes) -> None:
        lines = data.split(b"\n")
        steps = [line for line in lines if _STEP_MARK in line]
        try:
            made = _STEPS.decode(b"[" + b",".join(steps) + b"]") if steps else []
            if any(one.event != "step" for one in made):
                raise msgspec.DecodeError("an event that is no step")
            events = [_event(line) for line in lines if line and _STEP_MARK not in line]
        except (msgspec.MsgspecError, RecursionError):  # torn or edited lines: each by itself
            made, events = [], []
            for line in lines:
                if (event := _event(line)) is None:
                    continue
                (made.append(step) if (step := _as_step(event)) else events.append(event))
        found = [event for event in events if event is not None]
        odd = [step for event in found if (step := _as_step(event))]
        made = [one for one in made if _is_sound(one)] + odd
        self._take_steps(made)
        self._take_others([event for event in found if event["event"] != "step"], made, len(data))

    def _take_steps(self, steps: list[_Step]) -> None:
        if not steps:
            return
        x, t = [float(one.step) for one in steps], [one.t for one in steps]
        for name, values in (
            ("loss", [_value(one.loss) for one in steps]),
            ("step_s", [one.seconds for one in steps]),
            ("executors", [one.executors for one in steps]),
            ("noise_scale", [one.noise_scale for one in steps]),
        ):
            if None not in values:
                self._series(name, "step").extend(x, t, values)  # type: ignore[union-attr, arg-type]
            elif there := [i for i, value in enumerate(values) if value is not None]:
                self._series(name, "step").extend(  # type: ignore[union-attr]
                    [x[i] for i in there], [t[i] for i in there], [float(values[i] or 0.0) for i in there]
                )
        before = self.last or (x[0], t[0])
        times = np.array([before[1], *t])
        self.longest_gap_s = max(self.longest_gap_s, float(np.diff(times).max()))
        self.num_steps_redone += int((np.diff(np.array([before[0] if self.last else -1.0, *x])) <= 0).sum())
        self.first = self.first or (x[0], t[0])
        self.last = (x[-1], t[-1])
        for one in (steps[0], *_turns(steps), steps[-1]):
            ends = self._ends.setdefault(one.generation, [])
            ends[1:] = [msgspec.to_builtins(one)] if ends else []
            if not ends:
                ends.append(msgspec.to_builtins(one))
        if self._diverged is None and "loss" in self.series and self.series["loss"].num_bad:
            bad = next((one for one in steps if (v := _value(one.loss)) is not None and not math.isfinite(v)), None)
            self._diverged = None if bad is None else msgspec.to_builtins(bad)

    def _take_others(self, events: list[dict[str, Any]], steps: list[_Step], size: int) -> None:
        logged: dict[str, tuple[list[float], list[float], list[float]]] = {}
        reached = [(float(one.step), one.t) for one in steps]
        for event in events:
            name, t, step = event["event"], instant(event), whole(event, "step")
            if name == "log":
                if t is not None and step is not None and step < _MOST_STEPS:
                    reached.append((float(step), t))
                    for key in event.keys() - NOT_LOGGED:
                        value = number(event, key)
                        if value is not None:
                            columns = logged.setdefault(key, ([], [], []))
                            for column, one in zip(columns, (float(step), t, value), strict=True):
                                column.append(one)
            elif name == "executor_speed":
                self._measure(event)
            elif name in _CHATTER:
                self._chatter.append(event)
            elif len(self.story) < _MAX_STORY:
                self.story.append(event)
            else:
                self.is_cut = True
            if name == "batch" and len(self.batches) < _MAX_CHATTER:
                self.batches.append(event)
        for key, (x, ts, values) in logged.items():
            if (series := self._series(key, "log")) is not None:
                series.extend(x, ts, values)
        if reached:
            order, times = [one[0] for one in reached], [one[1] for one in reached]
            self.stretches.append(
                Stretch(
                    offset=self.offset,
                    size=size,
                    first_step=min(order),
                    last_step=max(order),
                    first_s=min(times),
                    last_s=max(times),
                )
            )

    def _measure(self, event: dict[str, Any]) -> None:
        """Means over the steps of an executor in a generation: one event instead of thousands."""
        key = (event.get("executor"), event.get("generation"))
        try:
            before = self._speeds.get(key)
        except TypeError:  # a list for a number: nobody's measure
            return
        if before is None:
            if len(self._speeds) < _MAX_STORY:
                self._speeds[key] = event
            return
        old, new = seconds(before, "steps") or 1.0, seconds(event, "steps") or 1.0
        merged = {**event, "steps": old + new}
        for name in ("turn_s", "exchange_s", "step_s", "idle"):
            one, other = seconds(before, name), seconds(event, name)
            if one is not None and other is not None:
                merged[name] = (one * old + other * new) / (old + new)
        self._speeds[key] = merged

    def _series(self, name: str, source: Source) -> Series | None:
        found = self.series.get(name)
        if found is None and (source == "step" or len(self.series) < MAX_SERIES):
            found = self.series[name] = Series(name, source)
        return found


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = msgspec.json.decode(line) if line else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def _as_step(event: dict[str, Any]) -> _Step | None:
    """Of a line that is written otherwise than the coordinator writes it."""
    t, step = instant(event), whole(event, "step")
    if event["event"] != "step" or t is None or step is None or step >= _MOST_STEPS:
        return None
    return _Step(
        event="step",
        t=t,
        step=step,
        loss=number(event, "loss"),
        seconds=seconds(event, "seconds"),
        executors=whole(event, "executors"),
        generation=whole(event, "generation"),
        noise_scale=number(event, "noise_scale"),
    )


def _is_sound(step: _Step) -> bool:
    return 0 <= step.step < _MOST_STEPS and math.isfinite(step.t)


def _value(loss: float | str | None) -> float | None:
    return number({"loss": loss}, "loss") if isinstance(loss, str) else loss


def _turns(steps: Sequence[_Step]) -> Iterator[_Step]:
    """Both sides of every change of generation."""
    for one, other in itertools.pairwise(steps):
        if one.generation != other.generation:
            yield one
            yield other
