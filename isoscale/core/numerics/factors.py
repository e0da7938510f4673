"""Which accuracy-relevant factors two executors may differ in, by level. Without torch: a coordinator asks, while it
has a job to watch, and importing torch would take it seconds. What the factors are is `core.numerics.determinism`'s.
"""

from __future__ import annotations

from collections.abc import Mapping

from isoscale.types import Level

__all__ = ["differences"]

_INSTRUCTION_SET_FACTORS = frozenset({"caps", "cpu_capability", "has_nnpack"})


def differences(mine: Mapping[str, str], theirs: Mapping[str, str], level: Level) -> tuple[str, ...]:
    """One line for each factor (as `Factors.to_dict` gives them) that must be the same at `level` and is not.

    At `elastic` instruction sets may differ, if the fingerprints do not; at `off` everything may.

    >>> differences({"num_threads": "1", "caps": ""}, {"num_threads": "2", "caps": "MKL_CBWR=AVX2"}, "elastic")
    ("num_threads: '1' != '2'",)
    """
    if level == "off":
        return ()
    names = {*mine, *theirs} - (_INSTRUCTION_SET_FACTORS if level == "elastic" else set())
    return tuple(
        f"{name}: {mine.get(name)!r} != {theirs.get(name)!r}"
        for name in sorted(names)
        if mine.get(name) != theirs.get(name)
    )
