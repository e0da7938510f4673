"""What a run leaves behind: its event log, its summary, and the facts of its result.

Told what executors report; writes each fact once, also when it is reported again after a coordinator was
replaced. A disk that is full costs a warning: events wait in memory until they can be written.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from isoscale.batches import BatchChange, recorded_changes
from isoscale.clock import Clock
from isoscale.errors import UserError
from isoscale.protocol import messages as m
from isoscale.protocol.events import EventLog, read_events
from isoscale.protocol.files import write_json_atomic
from isoscale.protocol.status import StreamStatus
from isoscale.types import JobSpec

__all__ = ["Journal", "Observer", "RunResult"]

_MAX_WAITING = 100_000
#: more than an executor keeps to say again to the next coordinator (`runtime.control.executor_link`)
_MAX_SEEN = 200_000
_SPEED_EVERY = 5

Show = Callable[[], object]


class Observer(Protocol):
    """Somebody who watches a run, such as a progress display. Must not block."""

    def on_output(self, line: str) -> bool:
        """A line that the script printed on the first executor. False: it could not be shown."""

    def on_begin(self, num_executors: int) -> None:
        """A generation began."""

    def on_step(self, step: m.StepDone, num_executors: int) -> None: ...

    def on_log(self, logged: m.Logged) -> None: ...

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        """Any other event: executors that come and go, rescales, checkpoints, warnings."""


@dataclass(slots=True)
class RunResult:
    exit_code: int = 1
    digest: str = ""
    step: int = 0
    #: of the last step; total: steps the job is expected to take, 0 if unknown
    epoch: int | None = None
    total: int = 0
    stop_reason: str = ""
    #: where the result is, if not in the run's directory
    saved: str = ""
    error: str = ""
    traceback: str = ""
    #: ended, saved, because its service gave its devices to others
    paused: bool = False
    seconds: float = 0.0
    loss: float | None = None
    logged: dict[str, Any] = field(default_factory=dict)
    #: by stream, how far its last known pass has come
    streams: dict[str, StreamStatus] = field(default_factory=dict)
    #: every logical worker's values per step, when the job records
    records: list[dict[str, dict[int, str]]] = field(default_factory=list)
    #: of one logical worker: at the beginning, and now; 0 where it cannot change
    begun_with: int = 0
    batch_size: int = 0
    #: as it was last measured
    noise_scale: float | None = None
    noise_skipped: int = 0
    #: of all logical workers, in committed steps
    samples: int = 0
    num_rescales: int = 0
    num_lost: int = 0


class Journal:
    def __init__(self, spec: JobSpec, observer: Observer, clock: Clock) -> None:
        self.result = RunResult()
        self._spec = spec
        self._observer = observer
        self._clock = clock
        path = Path(spec.out) / "events.jsonl"
        #: unix seconds: what executors tell now did not happen before
        self._told_at = clock.now()
        #: and of the run's first event
        self._began = self._told_at
        self._seen_logs = _Seen()
        self._seen_streamed = _Seen()
        #: the highest step that any coordinator has seen committed, and how often everybody was lost since
        self.reached = self.attempts = 0
        #: ids below this one were used by an earlier coordinator
        self.num_executors = 0
        #: steps in order, and the samples of all up to each
        self._counted, self._samples = array("q"), array("q")
        #: how the batch size was changed, by step
        self._batches: dict[int, BatchChange] = {}
        #: requests that an earlier coordinator has accepted and not answered, by id; and the highest id
        self.open_requests: dict[int, dict[str, Any]] = {}
        self.last_request = 0
        try:
            if path.exists():
                self._read_back(path)
            self._log = EventLog(path, clock)
        except OSError as error:
            raise UserError(
                field="DIR",
                value=spec.out,
                problem=f"its events.jsonl cannot be used ({error.strerror or error})",
                remedy="move it away",
            ) from None
        self._waiting: deque[tuple[str, float, dict[str, Any]]] = deque(maxlen=_MAX_WAITING)
        #: generation and number of beats by executor
        self._beats: dict[int, tuple[int, int]] = {}

    def _read_back(self, path: Path) -> None:
        """What an earlier coordinator has written."""
        for number, event in enumerate(read_events(path)):
            self._told_at = _seconds(event.get("t"), self._told_at)
            self._began = self._told_at if number == 0 else self._began
            if event["event"] == "step":
                self._count(event["step"], event.get("samples", 0))
                self.result.step, self.result.loss = event["step"], _number(event["loss"])
                if event["step"] > self.reached:
                    self.reached, self.attempts = event["step"], 0
            elif event["event"] == "restart":
                self.attempts = event["attempt"]
            elif event["event"] in ("failed", "stopped"):
                self.attempts = 0  # whoever goes on from there has decided to
            elif event["event"] in ("executor_started", "executor_joined"):
                self.num_executors = max(self.num_executors, event["executor"] + 1)
            elif event["event"] in ("batch", "batch_awaited"):
                self._batches |= {change.step: change for change in recorded_changes([event])}
                self.result.batch_size = event["to" if event["event"] == "batch" else "from"]
            elif event["event"] == "request":
                self.open_requests[event["id"]] = event
                self.last_request = max(self.last_request, event["id"])
            elif event["event"] == "answered":
                self.open_requests.pop(event["id"], None)
            elif event["event"] == "log":
                values = {k: v for k, v in event.items() if k not in ("t", "event", "step", "epoch")}
                self._seen_logs.add((event["step"], event["epoch"], repr(sorted(values))))
                self.result.logged |= values
            elif event["event"] in ("partitions", "pass_ended"):
                key = (event["event"], event["stream"], event["step"], event["handed_out"], event["epoch"])
                self._seen_streamed.add(key)

    @property
    def batches(self) -> tuple[BatchChange, ...]:
        """How the batch size was changed so far, in order of steps."""
        return tuple(self._batches[step] for step in sorted(self._batches))

    def rewind(self, step: int) -> None:
        """Training goes on from a checkpoint: steps after it come again."""
        self.result.step = step
        self._rewind_samples(step)

    def write(self, event: str, **fields: Any) -> None:
        if event in ("executor_lost", "rescale"):
            self.result.num_lost += event == "executor_lost"
            self.result.num_rescales += event == "rescale"
        self._write(event, fields)
        self._observer.on_event(event, fields)

    def _write(self, event: str, fields: dict[str, Any], *, late_s: float | None = None) -> None:
        """`late_s`: how long ago it happened, where an executor says so. Of such events none is before the last one."""
        t = self._clock.now()
        if late_s is not None:
            t = self._told_at = min(t, max(self._told_at, t - late_s))
        self._waiting.append((event, t, fields))
        reason = self._write_waiting()
        if reason and len(self._waiting) == 1:
            self._observer.on_event("warning", {"message": f"events cannot be written: {reason}"})

    def _write_waiting(self) -> str:
        """Why some are left; empty if none is."""
        try:
            while self._waiting:
                name, t, values = self._waiting[0]
                self._log.write(name, t=t, **values)
                self._waiting.popleft()
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _count(self, step: int, samples: int) -> None:
        """A step that is done again, after a return to a checkpoint, counts once."""
        self._rewind_samples(step - 1)
        self.result.samples += samples
        self._counted.append(step)
        self._samples.append(self.result.samples)

    def _rewind_samples(self, step: int) -> None:
        place = bisect_right(self._counted, step)
        del self._counted[place:], self._samples[place:]
        self.result.samples = self._samples[-1] if self._samples else 0

    # ---- what executors report ----

    def on_step(self, message: m.StepDone, late_s: float = 0.0) -> None:
        """`late_s`: how long ago it was committed."""
        if message.step <= self.result.step:
            return  # done again after a failure, or reported again
        self.reached = max(self.reached, message.step)
        if message.noise_scale is not None:
            self.result.noise_scale = message.noise_scale
        self.result.noise_skipped = max(self.result.noise_skipped, message.noise_skipped)
        self.result.step, self.result.loss = message.step, message.loss
        self.result.epoch, self.result.total = message.epoch, message.total
        self._count(message.step, message.samples)
        self._write(
            "step",
            {
                "step": message.step,
                "epoch": message.epoch,
                "loss": message.loss,
                "seconds": round(message.seconds, 6),
                "executors": message.executors,
                "generation": message.generation,
                "loader": message.loader,
                "batch": message.batch,
                "of": message.of,
                "samples": message.samples,
                **({} if message.noise_scale is None else {"noise_scale": message.noise_scale}),
                **({"noise_skipped": message.noise_skipped} if message.noise_skipped else {}),
            },
            late_s=late_s,
        )
        self._observer.on_step(message, message.executors)

    def on_logged(self, message: m.Logged, late_s: float = 0.0, then: Callable[[Show], object] = lambda f: f()) -> None:
        """`then` calls what shows it, when it is time."""
        key = (message.step, message.epoch, repr(sorted(message.values)))
        if key in self._seen_logs:
            return
        self._seen_logs.add(key)
        self.result.logged |= message.values
        self._write("log", {"step": message.step, "epoch": message.epoch, **message.values}, late_s=late_s)
        then(lambda: self._observer.on_log(message))

    def on_declared(self, message: m.Declared) -> None:
        self.result.batch_size = self.result.batch_size or message.size
        self.result.begun_with = self.result.begun_with or message.size

    def on_rebatched(self, message: m.Rebatched) -> None:
        """Once, also when it is told again, or done again after a restart. What was undone has changed nothing."""
        if message.error or message.old == message.new:
            return
        known = self._batches.get(message.step)
        fields = {"step": message.step, "from": message.old, "to": message.new, "reason": message.reason}
        if message.awaited:
            if known is None:
                self._keep_change("batch_awaited", fields)
            return
        self.result.batch_size = message.new
        if known is not None and known.made and known.size == message.new:
            return
        fields |= {
            "factor": message.factor,
            "learning_rates": list(message.learning_rates),
            "measured": message.measured,
        }
        self._keep_change("batch", fields)

    def _keep_change(self, event: str, fields: dict[str, Any]) -> None:
        self._batches |= {change.step: change for change in recorded_changes([{"event": event, **fields}])}
        self.write(event, **fields)

    def on_streamed(self, message: m.Streamed) -> None:
        fields = message.fields
        key = (message.event, message.stream, message.step, fields.get("handed_out"), fields.get("epoch"))
        if key in self._seen_streamed or message.event not in ("partitions", "pass_ended"):
            return
        self._seen_streamed.add(key)
        progress = {name: value for name, value in fields.items() if name != "to"}
        progress["ended"] = message.event == "pass_ended"
        self.result.streams[message.stream] = cast(StreamStatus, progress)
        self._write(message.event, {"stream": message.stream, "step": message.step, **fields})

    def on_recorded(self, message: m.Recorded) -> None:
        if message.step > len(self.result.records):
            self.result.records.append(message.values)

    def on_beat(self, executor: int, generation: int, beat: m.Beat) -> None:
        """Speeds go into the log now and then, and once in a short generation too."""
        if not beat.steps:
            return
        before, beats = self._beats.get(executor, (generation, 0))
        beats = beats if before == generation else 0
        self._beats[executor] = (generation, beats + 1)
        if beats % _SPEED_EVERY == 0:
            self._write(
                "executor_speed",
                {
                    "executor": executor,
                    "generation": generation,
                    "turn_s": round(beat.turn_s, 6),
                    "exchange_s": round(beat.exchange_s, 6),
                    "step_s": round(beat.step_s, 6),
                    "steps": beat.steps,
                    "idle": round(min(1.0, beat.exchange_s / beat.step_s), 4) if beat.step_s else 0.0,
                },
            )

    # ---- the end ----

    def close(self, executors: list[m.Hello], place: Path, *, rescued: bool = False, command: str = "") -> None:
        """`place` is where the run's directory is, or, `rescued`, another one because that is gone."""
        result = self.result
        summary = {
            "format": 1,
            "exit_code": result.exit_code,
            "step": result.step,
            "digest": result.digest,
            "samples": result.samples,
            "loss": result.loss if result.loss is None or result.loss == result.loss else str(result.loss),
            "seconds": round(result.seconds, 3),
            "began": round(self._began, 3),
            "ended": round(self._clock.now(), 3),
            "command": command,
            "result": result.saved,
            "stop_reason": result.stop_reason,
            "error": result.error,
            "logged": {k: v if v == v else str(v) for k, v in result.logged.items()},
            "executors": [{"executor": h.executor, "kind": h.kind, "fingerprint": h.fingerprint} for h in executors],
            "rescales": result.num_rescales,
            "lost": result.num_lost,
            "job": asdict(self._spec),
        }
        if result.begun_with:
            plan = [asdict(change) for change in self.batches if change.made]
            summary["batch"] = {"begun_with": result.begun_with, "size": result.batch_size, "plan": plan}
        try:
            write_json_atomic(place / "summary.json", summary)
        except (OSError, ValueError) as error:
            self._observer.on_event("warning", {"message": f"summary.json cannot be written: {error}"})
        if rescued:
            self._go_on_in(place / "events.jsonl")
        if reason := self._write_waiting():
            self._observer.on_event("warning", {"message": f"{len(self._waiting)} events are lost: {reason}"})
        self._log.close()

    def _go_on_in(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            self._log.copy_to(path)
            self._log.close()
            self._log = EventLog(path, self._clock)


class _Seen:
    """Facts that were written down, as many as may be reported again: a job that logs for weeks has no end of them."""

    def __init__(self) -> None:
        self._keys: dict[tuple[Any, ...], None] = {}

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return key in self._keys

    def add(self, key: tuple[Any, ...]) -> None:
        self._keys[key] = None
        if len(self._keys) > _MAX_SEEN:
            del self._keys[next(iter(self._keys))]


def _seconds(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) else otherwise


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
