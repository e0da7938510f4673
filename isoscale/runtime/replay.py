"""Replaying a finished run: what its directory says, what to start, and whether the replay agrees. Torch-free.

A replay trains again in one process with all logical workers, with the same seed, order, level and numeric profile,
from the start of the job: a run leaves no state of earlier steps than its last to start from (the next version will
start from elastic checkpoints). The training itself is `runtime.rerun`'s.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from isoscale import env
from isoscale.errors import UserError
from isoscale.kinds import executor_environment, profile_named, profile_of
from isoscale.protocol.events import read_events
from isoscale.types import JobSpec

__all__ = [
    "Compared",
    "Request",
    "RunLog",
    "Verdict",
    "check_request",
    "compare_loss",
    "read_log",
    "replayed_spec",
    "start_replay",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """What a run's directory says about it."""

    spec: JobSpec
    kind: str
    #: by step; None where the script logged nothing
    losses: Mapping[int, float | None]
    #: digests of the state after that many steps: of audits, taken before the next step
    audits: Mapping[int, str]
    #: step and digest of the end, None if the run did not reach it
    finished: tuple[int, str] | None

    @property
    def last_step(self) -> int:
        return max(self.losses, default=0)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What `isoscale replay` asks of the process that trains."""

    directory: str
    step: int
    logical_rank: int | None


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Something replayed beside what the log has, as text."""

    step: int
    replayed: str
    logged: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of a replay."""

    #: steps that were committed, all of which had their loss compared
    step: int
    #: the loss of the last of them
    loss: str
    first_difference: Compared | None
    #: where the log has one for the step
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
    path = directory / "summary.json"
    if not directory.is_dir():
        raise UserError(field="DIR", value=directory, problem="no such directory", remedy="give the directory of a run")
    try:
        summary = json.loads(path.read_text())
        spec = msgspec.convert(summary["job"], JobSpec)
    except FileNotFoundError:
        raise UserError(
            field="DIR",
            value=directory,
            problem="no summary.json: no run, or one that has not ended",
            remedy="give the directory of a run that has ended",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            field="DIR",
            value=directory,
            problem=f"summary.json cannot be read ({error})",
            remedy="give the directory of a run that has ended",
        ) from None
    if not Path(spec.script).is_file():
        raise UserError(
            field="DIR", value=directory, problem=f"its script {spec.script} is gone", remedy="put the script back"
        )
    events = list(read_events(directory / "events.jsonl")) if (directory / "events.jsonl").exists() else []
    losses = {e["step"]: None if e["loss"] is None else float(e["loss"]) for e in events if e["event"] == "step"}
    finished = [(int(e["step"]), str(e["digest"])) for e in events if e["event"] == "finished"]
    kinds = [executor["kind"] for executor in summary.get("executors", [])]
    return RunLog(
        spec=spec,
        kind=kinds[0] if kinds else spec.kinds[0],
        losses=losses,
        audits={e["step"]: str(e["digest"]) for e in events if e["event"] == "audit"},
        finished=finished[-1] if finished else None,
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
    """The job as it was, writing elsewhere."""
    return replace(log.spec, out=str(out), record=False, trace=None)


def start_replay(directory: Path, log: RunLog, request: Request) -> int:
    """Run the script in the foreground until the request is met; returns its exit code.

    `directory` is a scratch one: it gets the request, files that the script saves, and the verdict.
    """
    path = directory / "request.json"
    path.write_bytes(msgspec.json.encode(request))
    profile = profile_named(log.spec.profile) if log.spec.profile else profile_of(log.kind)
    variables = {env.REPLAY: str(path), "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
    environment = executor_environment(env.child_environment(variables), profile, log.spec.threads)
    process = subprocess.Popen([sys.executable, log.spec.script, *log.spec.script_args], env=environment)
    # A Ctrl-C in the terminal reaches both; it is for the script, or the debugger in it, to answer.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, previous)
