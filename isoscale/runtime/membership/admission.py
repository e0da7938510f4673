"""May an executor train in a job? It must compute the same bits as those that are there, as far as can be told.

And if it never came as far as that: is the script at fault?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from isoscale.errors import DeterminismError, ExecutorLostError, IsoscaleError, UserCodeError, UserError
from isoscale.protocol import messages as m
from isoscale.runtime.membership.roster import Executor
from isoscale.types import Level

__all__ = ["Admission", "Differences", "never_started", "script_fault"]

#: accuracy-relevant factors of two executors that may not differ
Differences = Callable[[Mapping[str, str], Mapping[str, str]], tuple[str, ...]]


@dataclass(slots=True)
class Admission:
    level: Level
    differences: Differences
    #: the first executor that the job ever had, as far as this coordinator knows: the others are held against it
    first: m.Hello | None = None

    def judge(self, hello: m.Hello) -> DeterminismError | None:
        """Why it may not train; None if it may."""
        first = self.first
        self.know(hello)
        return None if self.level == "off" or first is None else self._refusal(first, hello)

    def know(self, hello: m.Hello) -> None:
        """It trains, or is about to; another coordinator may have admitted it."""
        self.first = self.first or hello

    def _refusal(self, first: m.Hello, hello: m.Hello) -> DeterminismError | None:
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


def script_fault(script: str, executor: int, reason: str, output: str) -> IsoscaleError | None:
    """An executor ended before isoscale.run(train) was called; None if the script cannot be blamed: it was killed."""
    if "Traceback (most recent call last)" in output:
        return UserCodeError(traceback_text=output, logical_rank=None, executor=executor)
    if reason == "exit code 0":
        return UserError(
            field="SCRIPT",
            value=script,
            problem="ended without calling isoscale.run(train)",
            remedy="end the script with: if __name__ == '__main__': isoscale.run(train)",
        )
    if reason == "exit code 2" and output.strip():
        # What argparse and its like end with; isoscale itself never does before it has said hello.
        return UserError(
            field="SCRIPT",
            value=script,
            problem=f"ended itself: {output.strip().splitlines()[-1]}",
            remedy="give it other arguments after --",
        )
    return None


def never_started(out: str, one: Executor, reason: str, output: str, count: int) -> ExecutorLostError:
    """The last one of `count` in a row that ended before training, for no fault of the script's that could be told."""
    last = "".join(f" ({line})" for line in output.strip().splitlines()[-1:])
    why = f"{reason}{last}, and executors ended before training {count} times in a row"
    why += f"; see {out}/logs/executor-{one.executor}.log"
    return ExecutorLostError(executor=one.executor, pid=one.pid, generation=0, reason=why)
