"""Whether a job that failed is tried again, and in which words that is told. Pure.

The class of an error (`scheduling.failures`, the table by which `isoscale analyze` counts) says whether another try can
help; the owner's budget (`--retries`) says how often. What the infrastructure did is tried again without a budget, as
often as its class says (five times at most), and what never began (a full disk) for as long as it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from isoscale.cluster.outcome import INPUT, LOST, MACHINE, SCRIPT, Outcome
from isoscale.cluster.values import JobRecord
from isoscale.scheduling.failures import class_named, classify

__all__ = ["Verdict", "class_of", "counts", "last_words", "verdict"]

#: tries of a job whose coordinator dies again and again without a step in between
_DEATHS = 5
#: as the driver says it of a run that told nothing
_DIED = "coordinator died"
_BAD_INPUT = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    again: bool
    why: str


def class_of(outcome: Outcome) -> str:
    """For the driver, the events and the owner: one of the table's names, or lost, input, machine; "" for no error."""
    return classify(outcome.error).name if outcome.error_class == SCRIPT else outcome.error_class


def counts(error: str) -> bool:
    """Whether it is a failure of the job's: one that could not be started is not."""
    return error != MACHINE


def verdict(error: str, failures: int, retries: int) -> Verdict:
    """After so many failures that count, the last of this class; `retries`: the owner's budget.

    >>> verdict("syntax error", 1, 3)
    Verdict(again=False, why='syntax error: no retry cures it')
    >>> verdict("MPI runtime failure", 2, 3)
    Verdict(again=True, why='MPI runtime failure: retry 2 of 3')
    """
    if error == MACHINE:
        return Verdict(True, "it could not be started, which is no fault of its own and does not count")
    if error == INPUT:
        return Verdict(False, "it cannot be run as it was submitted: no retry cures it")
    if error in (LOST, _DIED):
        most, name = max(_DEATHS, retries), "its coordinator died"
    else:
        known = class_named(error)
        name = known.name
        if not known.retries:
            return Verdict(False, f"{name}: no retry cures it")
        # Whatever a log says, nothing is tried for ever.
        most = max(min(known.retries, _DEATHS), retries) if known.origin == "infrastructure" else retries
    if failures <= most:
        return Verdict(True, f"{name}: retry {failures} of {most}")
    if not most:
        return Verdict(False, f"{name}: another try may help, and no --retries were given")
    return Verdict(False, f"{name}: {most} retr{'y' if most == 1 else 'ies'} used up")


def last_words(job: JobRecord) -> str:
    """Of a job that has failed for good: why it was not tried again, as its row tells it; "" if it never ran."""
    if job.state != "failed" or job.started_s is None:
        return ""
    lost = job.error.startswith(f"its {_DIED}")
    error = INPUT if job.exit_code == _BAD_INPUT else LOST if lost else classify(job.error).name
    found = verdict(error, max(1, job.failures), job.submission.retries)
    return "" if found.again else found.why
