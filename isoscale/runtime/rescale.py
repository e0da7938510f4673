"""Membership of one job as a state machine: events in, instructions out, no I/O.

    gathering -> training -> done
        |            |
        +------------+-----> failed

While gathering, executors come up and show what they compute with; when all expected ones have and
may share a job, the first generation begins. A loss or a failure ends the job. The shell
(`runtime.coordinator`) performs the instructions and feeds back what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from isoscale.errors import DeterminismError, ExecutorLostError, IsoscaleError, UserCodeError, UserError
from isoscale.protocol import messages as m
from isoscale.types import JobSpec, Placement

__all__ = ["BeginGeneration", "Done", "Fail", "Instruction", "Membership", "Phase"]

Phase = Literal["gathering", "training", "done", "failed"]
Differences = Callable[[Mapping[str, str], Mapping[str, str]], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginGeneration:
    """Tell every member where it stands; `members[i]` is the executor at position i of the placement."""

    generation: int
    placement: Placement
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Every member has finished with the same digest."""

    step: int
    digest: str
    stop_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """End the job: kill what still runs and report the error."""

    error: IsoscaleError
    traceback: str = ""


Instruction = BeginGeneration | Done | Fail


@dataclass(slots=True)
class Membership:
    spec: JobSpec
    placement: Placement
    #: accuracy-relevant factors of two executors that may not differ at the job's level
    differences: Differences
    phase: Phase = "gathering"
    generation: int = 0
    #: executors by id that are set up
    hellos: dict[int, m.Hello] = field(default_factory=dict)
    finished: dict[int, m.Finished] = field(default_factory=dict)

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(self.hellos))

    def on_hello(self, hello: m.Hello) -> list[Instruction]:
        """An executor is set up. Refuse the job if it computes other bits; begin when all are here."""
        if self.phase != "gathering":
            return []
        refusal = self._refusal(hello)
        self.hellos[hello.executor] = hello
        if refusal is not None:
            return self._fail(refusal)
        if len(self.hellos) < self.placement.num_executors:
            return []
        self.phase = "training"
        self.generation += 1
        return [BeginGeneration(generation=self.generation, placement=self.placement, members=self.members)]

    def on_finished(self, finished: m.Finished) -> list[Instruction]:
        self.finished[finished.executor] = finished
        if self.phase != "training" or len(self.finished) < len(self.hellos):
            return []
        self.phase = "done"
        first = self.finished[self.members[0]]
        return [Done(step=first.step, digest=first.digest, stop_reason=first.stop_reason)]

    def on_failed(self, failed: m.Failed) -> list[Instruction]:
        """An executor says why it cannot go on."""
        if self.phase in ("done", "failed"):
            return []
        if failed.traceback:
            error: IsoscaleError = UserCodeError(
                traceback_text=failed.traceback, logical_rank=failed.logical_rank, executor=failed.executor
            )
            return self._fail(error, failed.traceback)
        return self._fail(ReportedError.of(failed))

    def on_lost(self, executor: int, pid: int, reason: str, output: str = "") -> list[Instruction]:
        """An executor is gone without a word; `output` is the end of what it printed."""
        if self.phase in ("done", "failed") or executor in self.finished:
            return []
        if executor not in self.hellos:
            # It never came as far as isoscale.run(train): the script itself is at fault.
            if "Traceback (most recent call last)" in output:
                return self._fail(UserCodeError(traceback_text=output, logical_rank=None, executor=executor), output)
            if reason == "exit code 0":
                return self._fail(
                    UserError(
                        field="SCRIPT",
                        value=self.spec.script,
                        problem="ended without calling isoscale.run(train)",
                        remedy="end the script with: if __name__ == '__main__': isoscale.run(train)",
                    )
                )
        return self._fail(ExecutorLostError(executor=executor, pid=pid, generation=self.generation, reason=reason))

    def _refusal(self, hello: m.Hello) -> IsoscaleError | None:
        if self.spec.determinism == "off" or not self.hellos:
            return None
        first = next(iter(self.hellos.values()))
        factors = self.differences(first.factors, hello.factors)
        if factors:
            return DeterminismError(
                field="executor",
                value=hello.executor,
                problem=f"computes under other conditions: {'; '.join(factors)}",
                remedy="give every executor the same torch, threads and settings",
            )
        if first.fingerprint != hello.fingerprint:
            names = [k for k in sorted(hello.kernels) if hello.kernels[k] != first.kernels.get(k)]
            return DeterminismError(
                field="--devices",
                value=f"{first.kind}+{hello.kind}",
                problem=f"these kinds compute different bits in {len(names)} kernels, first {', '.join(names[:1])}",
                remedy="use one kind, or --determinism heterogeneous with --kinds naming all of them",
                fingerprints={first.kind: first.fingerprint[:16], hello.kind: hello.fingerprint[:16]},
            )
        return None

    def _fail(self, error: IsoscaleError, traceback: str = "") -> list[Instruction]:
        self.phase = "failed"
        return [Fail(error=error, traceback=traceback)]


class ReportedError(IsoscaleError):
    """An isoscale error that an executor raised, as its one line and its exit code."""

    def __init__(self, summary: str, exit_code: int) -> None:
        super().__init__(summary)
        self.reported_exit_code = exit_code

    @classmethod
    def of(cls, failed: m.Failed) -> ReportedError:
        return cls(failed.summary, failed.exit_code)
