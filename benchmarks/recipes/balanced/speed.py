"""The packed balanced product against dense and torch.sparse, one thread, on the paper's matrices.

Every row is one matrix: dense (torch.mv), CSR with indices of 8 and of 4 bytes, the torch fallback and the kernel run
in random order in every round, and ratios are of 10th percentiles, beside dense against itself. `hot` runs each twice
and times the second, as if one matrix were used again and again (packed, it may then stay in a cache that is too small
for the dense one); `cold` goes through more copies than any cache holds, so that only bytes per weight count. The
roofline there is what reading the bytes once takes, at the bandwidth measured in the same run.

Batches of 8, as in the paper's micro-benchmark: dense is the better of a product with the matrix and with a copy that
was transposed beforehand. Whole models are in `models` and run with the rest.

    python -m benchmarks.recipes.balanced.speed
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch.nn.functional import linear

from benchmarks.lib.measure import percentile
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import save
from benchmarks.recipes.balanced.models import whole_models
from benchmarks.recipes.balanced.tables import batches, models, speed
from isoscale.recipes.balanced import kernel
from isoscale.recipes.balanced.packed import PackedMatrix
from isoscale.recipes.balanced.patterns import Balanced

RESULT, MINUTES = "recipes_balanced", 4
#: name, rows, columns, block width, kept in a block
MATRICES = (
    ("LSTM-1500", 6000, 1500, 50, 25),
    ("LSTM-1500", 6000, 1500, 50, 20),
    ("LSTM-1500", 6000, 1500, 50, 15),
    ("LSTM-1500", 6000, 1500, 25, 5),
    ("LSTM-1500", 6000, 1500, 50, 10),
    ("LSTM-1500", 6000, 1500, 100, 20),
    ("LSTM-1500", 6000, 1500, 50, 5),
    ("CTC LSTM-1024", 4096, 1024, 64, 8),
    ("VGG fc7", 4096, 4096, 64, 4),
)
#: the same, in batches of 8; the last is of the size of the paper's micro-benchmark
IN_BATCHES = (
    ("LSTM-1500", 6000, 1500, 50, 25),
    ("LSTM-1500", 6000, 1500, 50, 10),
    ("LSTM-1500", 6000, 1500, 50, 5),
    ("VGG fc7", 4096, 4096, 64, 4),
    ("16384 x 8192", 16384, 8192, 64, 32),
    ("16384 x 8192", 16384, 8192, 64, 6),
)
#: what a smoke run takes
SMALL = (("small", 400, 200, 50, 10),)
BATCH = 8
#: more than any cache holds
COLD_BYTES = 256 << 20
Work = Callable[[], Any]


def timed(work: dict[str, Work], rounds: int, *, hot: bool, seed: int = 0) -> dict[str, float]:
    """10th percentiles in microseconds, all run in random order in every round."""
    order = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(rounds + 2):
        for name in order.sample(list(work), len(work)):
            if hot:
                work[name]()
            start = time.perf_counter()
            work[name]()
            if turn >= 2:
                times[name].append(time.perf_counter() - start)
    return {name: round(percentile(values, 10) * 1e6, 1) for name, values in times.items()}


def endless(make: Callable[[], Any], num_bytes: int, *, hot: bool) -> Iterator[Any]:
    """Always the same thing, or so many copies of it in turn that none is still in a cache."""
    return cycle([make() for _ in range(1 if hot else -(-COLD_BYTES // num_bytes))])


def balanced(rows: int, columns: int, width: int, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight and its mask; the places that are kept come again every 1,024 rows, which spares minutes of sorting."""
    scores = torch.randn(min(rows, 1024), columns)
    mask = Balanced(width).mask(scores, torch.ones_like(scores, dtype=torch.bool), lambda _: keep)
    mask = mask.repeat(-(-rows // len(mask)), 1)[:rows]
    return torch.randn(rows, columns).mul_(mask), mask


def csr_copy(matrix: torch.Tensor, index: torch.dtype) -> torch.Tensor:
    indices = (matrix.crow_indices().to(index, copy=True), matrix.col_indices().to(index, copy=True))
    return torch.sparse_csr_tensor(*indices, matrix.values().clone(), size=matrix.shape, check_invariants=False)


def measure(name: str, rows: int, columns: int, width: int, keep: int, *, hot: bool, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    (weight, mask), x = balanced(rows, columns, width, keep), torch.randn(columns)
    packed = PackedMatrix.pack(weight, mask, width)
    csr = weight.to_sparse_csr()
    compiled = kernel.load()
    assert compiled is not None, "no compiler: there is no kernel to time"
    dense_at, again_at = (endless(weight.clone, weight.nbytes, hot=hot) for _ in range(2))
    num_kept = csr.values().numel()
    csr_64 = endless(partial(csr_copy, csr, torch.int64), 12 * num_kept, hot=hot)
    csr_32 = endless(partial(csr_copy, csr, torch.int32), 8 * num_kept, hot=hot)
    packed_at = endless(lambda: (packed.values.clone(), packed.indices.clone()), packed.num_bytes, hot=hot)
    row, out = x[None], torch.empty(1, rows)

    def run_kernel(path: int) -> None:
        values, indices = next(packed_at)
        compiled.multiply(values, indices, row, out, width=width, path=path)

    work: dict[str, Work] = {
        "dense": lambda: torch.mv(next(dense_at), x),
        "dense_again": lambda: torch.mv(next(again_at), x),
        "csr_int64": lambda: torch.mv(next(csr_64), x),
        "csr_int32": lambda: torch.mv(next(csr_32), x),
        "kernel": partial(run_kernel, compiled.best_path),
    }
    if hot:
        work |= {"kernel_avx2": partial(run_kernel, kernel.AVX2), "torch": lambda: packed.multiply_by_torch(row)}
    us = timed(work, rounds, hot=hot)
    return {
        "matrix": name,
        "shape": [rows, columns],
        "sparsity": round(1 - keep / width, 4),
        "block_width": width,
        "cache": "hot" if hot else "cold",
        "us": us,
        "control": round(us["dense_again"] / us["dense"], 4),
        "against_dense": round(us["dense"] / us["kernel"], 2),
        # what `to_sparse_csr` gives, and its smaller sibling
        "against_csr_int64": round(us["csr_int64"] / us["kernel"], 2),
        "against_csr_int32": round(us["csr_int32"] / us["kernel"], 2),
        "mbytes": {"dense": weight.nbytes / 1e6, "packed": packed.num_bytes / 1e6},
        "rounds": rounds,
    }


def measure_batch(name: str, rows: int, columns: int, width: int, keep: int, *, rounds: int) -> dict[str, Any]:
    """Hot, as far as a matrix fits a cache. Sparse products in torch take vectors as columns: they get them so."""
    torch.manual_seed(0)
    (weight, mask), x = balanced(rows, columns, width, keep), torch.randn(BATCH, columns)
    packed = PackedMatrix.pack(weight, mask, width)
    as_columns, transposed = x.T.contiguous(), weight.T.contiguous()
    csr_64 = weight.to_sparse_csr()
    csr_32 = csr_copy(csr_64, torch.int32)
    work: dict[str, Work] = {
        "dense": lambda: linear(x, weight),
        "dense_again": lambda: linear(x, weight),
        "dense_transposed": lambda: x @ transposed,
        "csr_int64": lambda: csr_64 @ as_columns,
        "csr_int32": lambda: csr_32 @ as_columns,
        "packed": lambda: packed.multiply(x),
    }
    us = timed(work, rounds, hot=weight.nbytes < COLD_BYTES)
    return {
        "matrix": name,
        "shape": [rows, columns],
        "sparsity": round(1 - keep / width, 4),
        "block_width": width,
        "batch": BATCH,
        "us": us,
        "control": round(us["dense_again"] / us["dense"], 4),
        "against_dense": round(min(us["dense"], us["dense_transposed"]) / us["packed"], 2),
        "against_csr_int64": round(us["csr_int64"] / us["packed"], 2),
        "against_csr_int32": round(us["csr_int32"] / us["packed"], 2),
        "rounds": rounds,
    }


def bandwidth_gb_s(rounds: int) -> float:
    """What one thread reads from memory: a reduction over more than any cache holds."""
    data = torch.ones(COLD_BYTES // 4)
    us = timed({"max": data.max, "sum": data.sum}, rounds, hot=False)
    return round(COLD_BYTES / min(us.values()) / 1e3, 1)


def main() -> None:
    options = chosen(__doc__)
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
    torch.set_num_threads(1)
    rounds = options.pick(smoke=4, quick=20, full=150)
    gb_s = bandwidth_gb_s(options.pick(smoke=1, quick=8, full=8))
    rows = []
    for matrix in SMALL if options.smoke else MATRICES:
        for hot in (True,) if options.smoke else (True, False):
            row = measure(*matrix, hot=hot, rounds=rounds)
            read_us = {name: round(size / gb_s * 1e3, 1) for name, size in row["mbytes"].items()}
            rows.append({**row, "read_once_us": read_us})
            print(
                f"{row['matrix']:14} {row['sparsity']:.3f} width {row['block_width']:3} {row['cache']:4}"
                f"  dense {row['us']['dense']:7.1f} us  kernel {row['us']['kernel']:7.1f}"
                f"  {row['against_dense']:5.2f}x dense  {row['against_csr_int64']:5.2f}x CSR"
                f"  {row['against_csr_int32']:5.2f}x CSR of int32"
                f"  read once: {read_us['dense']:.0f}, {read_us['packed']:.0f} us  control {row['control']:.3f}",
                flush=True,
            )
    in_batches = []
    for matrix in SMALL if options.smoke else IN_BATCHES:
        in_batches.append(
            measure_batch(
                *matrix,
                rounds=rounds
                if options.smoke
                else max(rounds // 20, rounds * 36_000_000 // (16 * matrix[1] * matrix[2])),
            )
        )
        print(batches(in_batches[-1:]).splitlines()[-1], flush=True)
    of_models = whole_models(timed, max(1, rounds // 4), only_small=options.smoke)
    print(speed(rows), batches(in_batches), models(of_models), sep="\n\n")
    compiled = kernel.load()
    assert compiled is not None
    facts: dict[str, Any] = {"bandwidth_gb_s": gb_s, "kernel_path": compiled.best_path, "threads": 1}
    save(RESULT, rows, options, models=of_models, batches=in_batches, **facts)


if __name__ == "__main__":
    main()
