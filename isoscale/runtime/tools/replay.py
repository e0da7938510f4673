"""Replaying steps of a run: what its directory says, what to start, and whether the replay agrees. Torch-free.

A replay trains again in one process with all logical workers, with the same seed, order, level and numeric profile,
from the newest checkpoint before the step, or from the start of the job. Whatever happened to the run's executors has
left no trace in its numbers, so the log of a run that rescaled, lost executors or was resumed reads like any other;
where a step was done again after a restart, its last occurrence counts. The training itself is `runtime.tools.rerun`'s.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from isoscale import env
from isoscale.batches import BatchChange, recorded_changes
from isoscale.errors import UserError
from isoscale.kinds import executor_environment, profile_named, profile_of
from isoscale.protocol.events import read_events
from isoscale.protocol.files import read_small, read_small_json
from isoscale.runtime.checkpoint import files as checkpoint
from isoscale.runtime.code.freezing import Frozen
from isoscale.runtime.code.launch import command_of
from isoscale.runtime.control.directory import SavedJob, check_spec, control_directory
from isoscale.types import JobSpec

__all__ = [
    "Compared",
    "ReplayResult",
    "Request",
    "RunLog",
    "check_request",
    "compare_loss",
    "make_request",
    "read_log",
    "replayed_spec",
    "spec_of",
    "start_replay",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """What a run's directory says about it."""

    spec: JobSpec
    kind: str
    #: by step; None where the script logged nothing. A step whose reporter died may be missing.
    losses: Mapping[int, float | None]
    #: digests of the state after that many steps: of audits, taken before the next step
    audits: Mapping[int, str]
    #: step and digest of the end, None if the run did not reach it
    finished: tuple[int, str] | None
    #: how the batch size was changed
    batches: tuple[BatchChange, ...] = ()

    @property
    def last_step(self) -> int:
        return max(self.losses, default=0)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What `isoscale replay` asks of the process that trains."""

    directory: str
    step: int
    logical_rank: int | None
    #: the state to begin with, and after how many steps it was saved; "" and 0 for the beginning
    checkpoint: str = ""
    start: int = 0
    #: the state that was saved after `step`, to compare with
    saved: str = ""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Something replayed beside what the log has, as text."""

    step: int
    replayed: str
    logged: str


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of a replay."""

    #: the last step that was done again
    step: int
    #: how many losses were held against the log
    num_compared: int
    #: the loss of the last of them
    loss: str
    first_difference: Compared | None
    #: where the log has one for the step, or a checkpoint
    digest: Compared | None
    #: of the logical worker asked for: value by name
    values: dict[str, str]
    #: why it ended before the step: "debugger", "interrupted", or the script's error
    stopped: str = ""

    @property
    def equal(self) -> bool:
        same_digest = self.digest is None or self.digest.replayed == self.digest.logged
        return self.first_difference is None and same_digest


def read_log(directory: Path) -> RunLog:
    """Raises UserError if `directory` holds no run, or one that cannot be replayed."""
    if not directory.is_dir():
        raise UserError(field="DIR", value=directory, problem="no such directory", remedy="give the directory of a run")
    spec = spec_of(directory)
    if not spec.code and not Path(spec.script).is_file():
        raise UserError(
            field="DIR", value=directory, problem=f"its script {spec.script} is gone", remedy="put the script back"
        )
    events = list(read_events(directory / "events.jsonl")) if (directory / "events.jsonl").exists() else []
    losses = {e["step"]: None if e["loss"] is None else float(e["loss"]) for e in events if e["event"] == "step"}
    finished = [(int(e["step"]), str(e["digest"])) for e in events if e["event"] == "finished"]
    kinds = [str(e["kind"]) for e in events if e["event"] == "executor_started"]
    return RunLog(
        spec=spec,
        kind=kinds[0] if kinds else spec.kinds[0],
        losses=losses,
        audits={e["step"]: str(e["digest"]) for e in events if e["event"] == "audit"},
        finished=finished[-1] if finished else None,
        batches=tuple(recorded_changes(events)),
    )


def spec_of(directory: Path) -> JobSpec:
    """From the summary; of a run that goes on or was killed, from what its coordinator left for a successor."""
    try:
        try:
            spec = msgspec.convert(read_small_json(directory / "summary.json")["job"], JobSpec)
        except FileNotFoundError:
            path = control_directory(directory) / "job.json"
            spec = msgspec.json.decode(read_small(path), type=SavedJob).spec
        check_spec(spec)
        return spec
    except FileNotFoundError:
        problem = "no summary.json: no run, or one that never began"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"summary.json cannot be read ({error})"
    raise UserError(field="DIR", value=directory, problem=problem, remedy="give the directory of a run") from None


def make_request(
    directory: Path, log: RunLog, step: int, logical_rank: int | None, warn: Callable[[str], None]
) -> Request:
    """Where to begin: `warn` is told why a checkpoint is skipped, or does not quite fit. Refuses what cannot fit."""
    checkpoints = directory / "checkpoints"
    if not checkpoints.is_dir():
        return Request(directory=str(directory.resolve()), step=step, logical_rank=logical_rank)
    found = checkpoint.at_or_before(checkpoints, step - 1, warn)
    if found is not None:
        for warning in checkpoint.check_identity(found.identity, checkpoint.Identity.of(log.spec)):
            warn(warning)
    after = checkpoint.at_or_before(checkpoints, step, warn)
    return Request(
        directory=str(directory.resolve()),
        step=step,
        logical_rank=logical_rank,
        checkpoint=str(found.path.resolve()) if found is not None else "",
        start=found.step if found is not None else 0,
        saved=str(after.path.resolve()) if after is not None and after.step == step else "",
    )


def check_request(log: RunLog, step: int, logical_rank: int | None) -> None:
    if not 1 <= step <= log.last_step:
        raise UserError(
            field="--step",
            value=step,
            problem=f"the run's log has steps 1 to {log.last_step}" if log.last_step else "the run's log has no step",
            remedy="give one of them",
        )
    if logical_rank is not None and not 0 <= logical_rank < log.spec.workers:
        raise UserError(
            field="--logical-rank",
            value=logical_rank,
            problem=f"the job has {log.spec.workers} logical workers",
            remedy=f"give 0 .. {log.spec.workers - 1}",
        )


def compare_loss(step: int, replayed: float | None, logged: float | None) -> Compared | None:
    """None if both are the same number, bit for bit (or both were not logged)."""
    texts = ["nothing logged" if loss is None else repr(loss) for loss in (replayed, logged)]
    return None if texts[0] == texts[1] else Compared(step=step, replayed=texts[0], logged=texts[1])


def replayed_spec(log: RunLog, out: Path) -> JobSpec:
    """The job as it was, with the batch sizes that it had, writing elsewhere."""
    return replace(log.spec, out=str(out), record=False, trace=None, batch_plan=log.batches)


def start_replay(directory: Path, log: RunLog, request: Request, code: Frozen | None) -> int:
    """Run the script in the foreground until the request is met; returns its exit code.

    `directory` is a scratch one: it gets the request, files that the script saves, and the verdict. `code` is what the
    run has kept.
    """
    path = directory / "request.json"
    path.write_bytes(msgspec.json.encode(request))
    profile = profile_named(log.spec.profile) if log.spec.profile else profile_of(log.kind)
    variables = {env.REPLAY: str(path), "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
    if code is not None:
        variables[env.CODE] = str(code.path.resolve())
    environment = executor_environment(env.child_environment(variables), profile, log.spec.threads)
    process = subprocess.Popen(command_of(log.spec, kept=code is not None), env=environment)
    # A Ctrl-C in the terminal reaches both; it is for the script, or the debugger in it, to answer.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, previous)
