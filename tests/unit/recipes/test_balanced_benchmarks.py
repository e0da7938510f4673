"""The figures that the benchmarks of Balanced Sparsity make of their rows."""

from __future__ import annotations

from typing import Any

from benchmarks.recipes.balanced import tables


def row(seed: int, pattern: str, accuracy: float, sparsity: str = "0.9") -> dict[str, Any]:
    return {"model": "cnn", "seed": seed, "pattern": pattern, "sparsity": sparsity, "accuracy": accuracy}


def test_gaps_are_paired_by_seed() -> None:
    rows = [row(0, "balanced", 95.0), row(0, "random", 96.0), row(1, "balanced", 97.0), row(1, "random", 95.0)]
    rows += [row(2, "balanced", 50.0), row(3, "random", 50.0), row(0, "random", 0.0, "0.5")]
    assert tables.gaps(rows, "cnn", "0.9", "accuracy") == [-1.0, 2.0]


def test_an_interval_is_students() -> None:
    # mean 1, standard deviation 1, three seeds: 4.303 / sqrt(3)
    assert tables.interval([0.0, 1.0, 2.0]) == "+1.00 +- 2.48 (3 seeds)"
    assert tables.interval([1.0]) == ""


def test_dense_in_batches_is_the_better_of_two() -> None:
    us = {"dense": 900.0, "dense_transposed": 600.0, "packed": 200.0}
    made = {"matrix": "M", "shape": [4, 8], "sparsity": 0.8, "block_width": 4, "us": us}
    made |= {"against_dense": 3.0, "against_csr_int64": 2.0, "against_csr_int32": 1.0}
    assert tables.batches([made]).splitlines()[-1] == "| M, 4 x 8 | 0.8 | 4 | 600 | 200 | 3.00 | 2.00 | 1.00 |"
