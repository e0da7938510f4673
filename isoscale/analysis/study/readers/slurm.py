"""Final states as Slurm writes them, which Helios and Acme have."""

from __future__ import annotations

from isoscale.sim.traces.record import Row

__all__ = ["status_of"]

#: state -> status and, where the state tells it, the class of the error
_STATES: dict[str, tuple[str, str]] = {
    "COMPLETED": ("passed", ""),
    "CANCELLED": ("killed", ""),
    "FAILED": ("failed", ""),
    "TIMEOUT": ("failed", "time limit"),
    "NODE_FAIL": ("failed", "node failure"),
    "OUT_OF_MEMORY": ("failed", "CPU out of memory"),
    "PREEMPTED": ("failed", "job preempted"),
    "BOOT_FAIL": ("failed", "node failure"),
    "DEADLINE": ("failed", "time limit"),
    "RUNNING": ("unfinished", ""),
    "PENDING": ("unfinished", ""),
    "SUSPENDED": ("unfinished", ""),
    "REQUEUED": ("unfinished", ""),
}


def status_of(row: Row) -> tuple[str, str]:
    """Status and class of the error. Raises UserError for a state that Slurm does not have."""
    # "CANCELLED by 1001" tells who did it.
    state = row.text("state").split(" ")[0].rstrip("+").upper()
    if state not in _STATES:
        raise row.bad("state", row.text("state"), "is not a state", f"give one of {', '.join(_STATES)}")
    return _STATES[state]
