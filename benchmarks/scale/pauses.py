"""How long training stands still when one of two executors is killed: isoscale's pause, torchrun's restart.

From the kept result of `benchmarks.elastic.gaps` where there is one; otherwise from three quick runs of it that were
noted here, beside other work on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.scale import options

_MODEL = "transformer 26 MB"
#: seconds. 2026-11-17, three times:
#: python -m benchmarks.elastic.gaps --quick --systems isoscale,torchrun --scenarios "kill,kill node" --models 1
_NOTED = {"isoscale kill": (0.52, 0.64, 0.59), "torchrun kill node": (14.9, 14.9, 17.0)}


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds."""

    elastic_s: float
    restart_s: float
    source: str


def pauses() -> Pauses:
    try:
        entries = options.kept("elastic")["summary"]
    except FileNotFoundError:
        noted = {name: sorted(values)[1] for name, values in _NOTED.items()}
        return Pauses(noted["isoscale kill"], noted["torchrun kill node"], "three quick runs of 2026-11-17")
    found = {
        f"{entry['system']} {entry['scenario']}": entry["gap_s"]["median"]
        for entry in entries
        if entry["model"] == _MODEL and "gap_s" in entry
    }
    return Pauses(found["isoscale kill"], found["torchrun kill node"], "benchmarks/results/elastic.json")
