"""Jobs whose runs failed: whether they get another try, and which of them wait for it. Pure bookkeeping.

Part of `scheduling.driver`. The rules themselves come from outside: simulator and service have their own.
"""

from __future__ import annotations

from collections.abc import Callable

from isoscale.scheduling.runs import Run

__all__ = ["Retries", "RetryRule"]

#: (job, class of error, failures that count so far) -> whether to try again
RetryRule = Callable[[str, str, int], bool]


class Retries:
    def __init__(self, rule: RetryRule, backoff_s: Callable[[int], float], counts: Callable[[str], bool]) -> None:
        """`backoff_s(failures)`: how long a job waits for its next try. `counts(class of error)`: False for what is no
        failure of the job's; it is tried again, and the budget stays."""
        self._rule = rule
        self._backoff_s = backoff_s
        self.counts = counts
        #: by job, those that wait
        self.waiting: dict[str, Run] = {}

    def may_retry(self, run: Run, error: str) -> bool:
        """It failed once more."""
        if self.counts(error):
            run.failures, run.misses = run.failures + 1, 0
        else:
            run.misses += 1
        return self._rule(run.name, error, run.failures)

    def wait(self, run: Run, now: float) -> bool:
        """Until its next try. False if it need not."""
        pause_s = self._backoff_s(run.misses or run.failures)
        if pause_s <= 0:
            return False
        run.not_before_s = now + pause_s
        self.waiting[run.name] = run
        return True

    def wait_on(self, run: Run, not_before_s: float, now: float) -> None:
        """It waited already, by another clock than the one of `now`: no pause is longer than the rule says."""
        run.not_before_s = min(not_before_s, now + self._backoff_s(max(1, run.failures)))
        self.waiting[run.name] = run

    def forget(self, run: Run) -> None:
        """It waits no longer."""
        self.waiting.pop(run.name, None)

    def next_s(self) -> float:
        """When the first of those that wait may be tried; there is one."""
        return min(run.not_before_s for run in self.waiting.values())

    def due(self, now: float) -> list[Run]:
        """Those that need not wait any more."""
        due = [run for run in self.waiting.values() if run.not_before_s <= now]
        for run in due:
            del self.waiting[run.name]
        return due
