"""The cluster over time: devices held, away and there, jobs that wait and run, folded from the event rows as they come.

Rows are read once; what is kept is a line of numbers for each change, so many at most, the newest.
"""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from isoscale.cluster.picture import Picture
from isoscale.cluster.store import Store
from isoscale.cluster.values import ENDED, HOLDING, Event, State

__all__ = ["ClusterHistory", "Fold", "HistoryShown", "Level"]

_log = logging.getLogger(__name__)

Floats = NDArray[np.float64]

_PAGE = 5_000
#: changes that are kept
_MOST = 200_000
#: seconds between two looks at how fast all jobs together are, and how many looks are kept: two days
_LOOK_S, _LOOKS = 5.0, 34_560
_STATES: dict[str, State] = {
    "job_submitted": "queued",
    "job_queued": "queued",
    "job_starting": "starting",
    "job_running": "running",
    "job_resizing": "resizing",
    "job_pausing": "pausing",
    "job_paused": "paused",
    "job_finished": "finished",
    "job_failed": "failed",
    "job_cancelled": "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Per stretch of time: where it begins, the mean weighted by time, the extremes."""

    x: tuple[float, ...] = ()
    value: tuple[float | None, ...] = ()
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryShown:
    """Devices: `capacity`, `held`, `away`. Jobs: `queued`, `running`; `finished` and `failed` count in each stretch."""

    begin: float
    end: float
    #: what came before is not known any more
    since: float | None
    capacity: Level
    held: Level
    away: Level
    queued: Level
    running: Level
    finished: Level
    failed: Level
    #: of all jobs together; only while a service looked
    steps_per_s: Level


@dataclass(slots=True)
class Fold:
    """Events in, levels out. Pure."""

    #: state and devices of jobs that are not over
    states: dict[str, State] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    queued: int = 0
    running: int = 0
    held: int = 0
    finished: int = 0
    failed: int = 0

    def take(self, event: Event) -> bool:
        """Whether a level has changed."""
        before = self.levels()
        if event.event in _STATES and event.job:
            self._turn(event.job, _STATES[event.event])
        elif event.event in ("job_started", "job_resumed", "job_resized") and event.job in self.states:
            self._hold(event.job, event.fields.get("to"))
        elif event.event in ("devices_away", "devices_lent"):
            found = event.fields.get("devices")
            devices = {one for one in found if isinstance(one, str)} if isinstance(found, list) else set()
            self.away = self.away | devices if event.event == "devices_away" else self.away - devices
        return self.levels() != before

    def levels(self) -> tuple[int, ...]:
        return self.held, len(self.away), self.queued, self.running, self.finished, self.failed

    def _turn(self, job: str, state: State) -> None:
        before = self.states.get(job)
        if before == state or (before is None and state not in ("queued", *ENDED)):
            return
        self.queued += (state == "queued") - (before == "queued")
        self.running += (state in HOLDING) - (before in HOLDING)
        if state in ENDED:
            self.states.pop(job, None)
            self.finished += state == "finished"
            self.failed += state == "failed"
        else:
            self.states[job] = state
        if state in ENDED or state in ("queued", "paused"):
            self.held -= self.devices.pop(job, 0)

    def _hold(self, job: str, count: object) -> None:
        if isinstance(count, int) and 0 <= count < 10**6:
            self.held += count - self.devices.get(job, 0)
            self.devices[job] = count


class ClusterHistory:
    def __init__(self, store: Store, picture: Callable[[], Picture], now: Callable[[], float]) -> None:
        self._store, self._picture, self._now = store, picture, now
        self._lock = threading.Lock()
        self._fold = Fold()
        self._after = 0
        self._t: list[float] = []
        self._levels: list[tuple[int, ...]] = []
        #: the newest event that they hold, and both as arrays
        self._arrays: tuple[int, Floats, Floats] = (0, np.empty(0), np.empty((0, 6)))
        self._speeds: collections.deque[tuple[float, float]] = collections.deque(maxlen=_LOOKS)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def show(self, begin: float, end: float, points: int) -> HistoryShown:
        """`begin` < `end`."""
        with self._lock:
            self._read_on()
            if self._arrays[0] != self._after:  # made anew only when something has happened
                times = np.array(self._t)
                self._arrays = self._after, times, np.array(self._levels, dtype=np.float64).reshape(len(times), 6)
            _, times, levels = self._arrays
            speeds = np.array(self._speeds).reshape(-1, 2)
        picture = self._picture()
        total = sum(len(node.devices) for node in picture.nodes)
        edges = np.linspace(begin, end, points + 1)
        held, away, queued, running = (_level(times, levels[:, column], edges) for column in range(4))
        finished, failed = (_counts(times, levels[:, column], edges) for column in (4, 5))
        return HistoryShown(
            begin=begin,
            end=end,
            since=float(times[0]) if len(times) else None,
            capacity=_level(times, total - levels[:, 1], edges),
            held=held,
            away=away,
            queued=queued,
            running=running,
            finished=finished,
            failed=failed,
            steps_per_s=_samples(speeds, edges),
        )

    def _read_on(self) -> None:
        while rows := self._store.events(after=self._after, limit=_PAGE):
            for event in rows:
                if self._fold.take(event) or not self._t:
                    self._t.append(event.t)
                    self._levels.append(self._fold.levels())
            self._after = rows[-1].id
            if len(self._t) > _MOST:
                del self._t[: _MOST // 2], self._levels[: _MOST // 2]

    def _work(self) -> None:
        """Reads ahead, so that who asks first does not wait; then looks how fast all are, now and then."""
        while True:
            try:
                with self._lock:
                    self._read_on()
                speed = sum(one.steps_per_s or 0.0 for one in self._picture().jobs.values())
                self._speeds.append((self._now(), speed))
            except Exception:
                if self._closing.is_set():
                    return
                _log.exception("no history")
            if self._closing.wait(_LOOK_S):
                return


def _level(times: Floats, values: Floats, edges: Floats) -> Level:
    """A level holds from its change to the next one; unknown before the first."""
    if not len(times):
        return Level()
    times = np.maximum.accumulate(times)
    integral = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(times))])

    def upto(moment: Floats) -> Floats:
        at = np.clip(np.searchsorted(times, moment, side="right") - 1, 0, None)
        found: Floats = integral[at] + values[at] * np.maximum(0.0, moment - times[at])
        return found

    known = np.maximum(0.0, edges[1:] - np.maximum(edges[:-1], times[0]))
    mean = np.divide(np.diff(upto(edges)), known, out=np.full(len(known), np.nan), where=known > 0)
    # Of each stretch: what held at its beginning, and every change in it.
    first = np.searchsorted(times, edges[:-1], side="right") - 1
    last = np.searchsorted(times, edges[1:], side="left")
    low, high = np.full(len(known), np.nan), np.full(len(known), np.nan)
    for index in np.flatnonzero(known > 0):
        part = values[max(0, first[index]) : max(last[index], first[index] + 1)]
        if len(part):
            low[index], high[index] = part.min(), part.max()
    return _shown(edges, mean, low, high)


def _counts(times: Floats, values: Floats, edges: Floats) -> Level:
    """Of a number that only grows: by how much in each stretch."""
    if not len(times):
        return Level()
    at = np.searchsorted(times, edges, side="right") - 1
    grown = np.diff(np.where(at >= 0, values[np.maximum(at, 0)], values[0]))
    return _shown(edges, grown, grown, grown)


def _samples(samples: Floats, edges: Floats) -> Level:
    if not len(samples):
        return Level()
    of = np.searchsorted(edges, samples[:, 0], side="right") - 1
    inside = (of >= 0) & (of < len(edges) - 1)
    mean = np.full(len(edges) - 1, np.nan)
    low, high = mean.copy(), mean.copy()
    for index in np.unique(of[inside]):
        part = samples[of == index, 1]
        mean[index], low[index], high[index] = part.mean(), part.min(), part.max()
    return _shown(edges, mean, low, high)


def _shown(edges: Floats, mean: Floats, low: Floats, high: Floats) -> Level:
    def plain(values: Floats) -> tuple[float | None, ...]:
        return tuple(None if value != value else value for value in np.round(values, 6).tolist())

    return Level(x=tuple(edges[:-1].tolist()), value=plain(mean), low=plain(low), high=plain(high))
