"""Traces by name: the small ones that the package ships, generators, and files.

Shipped tables hold facts about published experiments; each says in its first lines where they come from.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

from isoscale.errors import UserError
from isoscale.sim.synthetic import generate, parse_generator
from isoscale.sim.traces import TraceJob, read_trace
from isoscale.sim.traces.own import read_own

__all__ = ["BUILTIN", "builtin_trace", "find_trace"]

#: name -> file of isoscale/sim/data
BUILTIN = {"easyscale": "easyscale_d1aff.csv", "easyscale-d2c": "easyscale_d2c.csv"}


def builtin_trace(name: str) -> list[TraceJob]:
    with resources.as_file(resources.files("isoscale.sim") / "data" / BUILTIN[name]) as path:
        return list(read_own(path))


def find_trace(text: str, format: str = "auto", *, seed: int = 0) -> list[TraceJob]:
    """The jobs of a shipped trace, of a generator such as `philly:jobs=500,seed=1`, or of a file.

    `seed` is added to the generator's own; a recorded trace is what it is.
    """
    if text in BUILTIN:
        return builtin_trace(text)
    if text.partition(":")[0] == "philly":
        spec = parse_generator(text)
        return generate(replace(spec, seed=spec.seed + seed))
    if "/" in text or text.endswith((".csv", ".json", ".trace")) or _exists(text):
        return read_trace(Path(text), format)
    raise UserError(
        field="--trace",
        value=text,
        problem="neither a file nor a known trace",
        remedy=f"give a path, {', '.join(BUILTIN)}, or a generator such as philly:jobs=1000,days=7,seed=0",
    )


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except OSError:  # too long for a name
        return False
