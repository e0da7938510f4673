"""The packed balanced product against dense and torch.sparse, one thread, on the paper's matrices.

Every row is one matrix: dense (torch.mv), CSR with indices of 8 and of 4 bytes, the torch fallback and the kernel run
in random order in every round, and ratios are of 10th percentiles, beside dense against itself. `hot` runs each twice
and times the second, as if one matrix were used again and again (packed, it may then stay in a cache that is too small
for the dense one); `cold` goes through more copies than any cache holds, so that only bytes per weight count. The
roofline there is what reading the bytes once takes, at the bandwidth measured in the same run.

Whole models: a step of the paper's two-layer LSTM-1500 with its word layer, batch 1; an image through balanced_cnn.

    python benchmarks/recipes_balanced.py [--quick]
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
from measure import percentile, quick_option, save
from recipes_balanced_tables import models as tables_of_models
from recipes_balanced_tables import speed
from torch import nn

from isoscale.recipes import balanced_cnn
from isoscale.recipes.balanced import kernel
from isoscale.recipes.balanced.inference import pack_model
from isoscale.recipes.balanced.packed import PackedMatrix
from isoscale.recipes.balanced.patterns import Balanced
from isoscale.recipes.balanced.pruning import weights_of

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
    return cycle([make() for _ in range(1 if hot else max(2, -(-COLD_BYTES // num_bytes)))])


def csr_copy(matrix: torch.Tensor, index: torch.dtype) -> torch.Tensor:
    indices = (matrix.crow_indices().to(index, copy=True), matrix.col_indices().to(index, copy=True))
    return torch.sparse_csr_tensor(*indices, matrix.values().clone(), size=matrix.shape, check_invariants=False)


def measure(name: str, rows: int, columns: int, width: int, keep: int, *, hot: bool, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    weight, x = torch.randn(rows, columns), torch.randn(columns)
    mask = Balanced(width).mask(weight, torch.ones_like(weight, dtype=torch.bool), lambda _: keep)
    packed = PackedMatrix.pack(weight, mask, width)
    csr = (weight * mask).to_sparse_csr()
    compiled = kernel.load()
    assert compiled is not None, "no compiler: there is no kernel to time"
    dense_at, again_at = (endless(weight.clone, weight.nbytes, hot=hot) for _ in range(2))
    num_kept = csr.values().numel()
    csr_64 = endless(partial(csr_copy, csr, torch.int64), 12 * num_kept, hot=hot)
    csr_32 = endless(partial(csr_copy, csr, torch.int32), 8 * num_kept, hot=hot)
    packed_at = endless(lambda: (packed.values.clone(), packed.indices.clone()), packed.num_bytes, hot=hot)
    row, out = x[None], torch.empty(1, packed.values.shape[0] * 64)

    def run_kernel(path: int) -> None:
        values, indices = next(packed_at)
        compiled.multiply(values, indices, row, width=width, path=path, out=out)

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


def bandwidth_gb_s(rounds: int) -> float:
    """What one thread reads from memory: a reduction over more than any cache holds."""
    data = torch.ones(COLD_BYTES // 4)
    us = timed({"max": data.max, "sum": data.sum}, rounds, hot=False)
    return round(COLD_BYTES / min(us.values()) / 1e3, 1)


class WordModel(nn.Module):
    """The paper's language model: two layers of 1500, 10,000 words."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1500, 1500, 2, batch_first=True)
        self.words = nn.Linear(1500, 10_000)

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        outputs, state = self.lstm(x, state)
        return self.words(outputs), state


class Cells(nn.Module):
    """The same layers step by step: nn.LSTM rearranges all its weights in every call, which one step cannot repay."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(lstm.input_size, lstm.hidden_size) for _ in range(lstm.num_layers)])
        for n, cell in enumerate(self.cells):
            cell.load_state_dict({name: getattr(lstm, f"{name}_l{n}") for name in cell.state_dict()})

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        x, states = x[:, 0], []
        for cell, h, c in zip(self.cells, *state, strict=True):
            states.append(cell(x, (h, c)))
            x = states[-1][0]
        return x[:, None], states


def masks_of(model: nn.Module, exclude: tuple[str, ...], width: int, keep: int) -> dict[str, torch.Tensor]:
    pattern = Balanced(width)
    masks = {}
    for name, weight in weights_of(model, exclude=exclude).items():
        masks[name] = pattern.mask(weight, torch.ones_like(weight, dtype=torch.bool), lambda _: keep)
        weight.data.masked_fill_(~masks[name], 0.0)
    return masks


@torch.no_grad()
def whole_models(rounds: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model, x = WordModel().eval(), torch.randn(1, 1, 1500)
    state = (torch.randn(2, 1, 1500), torch.randn(2, 1, 1500))
    masks = masks_of(model, (), 50, 10)
    lstm_masks = {name: mask for name, mask in masks.items() if name.startswith("lstm")}
    lstm, both = pack_model(model, lstm_masks, 50), pack_model(model, masks, 50)
    dense = Cells(model.lstm)
    lstm_work: dict[str, Work] = {
        "dense": lambda: dense(x, state),
        "dense_nn_lstm": lambda: model.lstm(x, state),
        "packed": lambda: lstm.lstm(x, state),
    }
    word_work: dict[str, Work] = {
        "dense": lambda: model.words(dense(x, state)[0]),
        "packed": lambda: both(x, state),
        "packed_but_words": lambda: lstm(x, state),
    }
    network, image = balanced_cnn.network().eval(), torch.randn(1, 1, 28, 28)
    small = pack_model(network, masks_of(network, balanced_cnn.DENSE_LAYERS, 20, 4), 20)
    image_work: dict[str, Work] = {"dense": lambda: network(image), "packed": lambda: small(image)}
    rows = [
        ("2 layers of LSTM-1500, one step", lstm_work),
        ("the same and 10,000 words, one step", word_work),
        ("balanced_cnn, one image", image_work),
    ]
    results = []
    for name, work in rows:
        us = timed(work, rounds, hot=True)
        results.append(
            {"model": name, "sparsity": 0.8, "us": us, "against_dense": round(us["dense"] / us["packed"], 2)}
        )
    return results


def main() -> None:
    options = quick_option(__doc__ or "")
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
    torch.set_num_threads(1)
    rounds = 20 if options.quick else 200
    gb_s = bandwidth_gb_s(8)
    rows = []
    for matrix in MATRICES:
        for hot in (True, False):
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
    models = whole_models(rounds // 4)  # nn.LSTM takes a tenth of a second
    print(speed(rows), tables_of_models(models), sep="\n\n")
    if not options.quick:
        compiled = kernel.load()
        assert compiled is not None
        save("recipes_balanced", rows, models=models, bandwidth_gb_s=gb_s, kernel_path=compiled.best_path, threads=1)


if __name__ == "__main__":
    main()
