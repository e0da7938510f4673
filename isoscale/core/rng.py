"""Random streams of one identity: Python, NumPy, torch CPU and, where initialised, CUDA.

A `Streams` value is everything the global generators of a process hold. Capturing and restoring
is how a logical worker keeps its own randomness while it shares a process with others. Generators
that a user builds are not seen here; `job.keep_per_worker` switches those.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Streams", "capture", "isolated", "restore", "seed_all", "seeded"]


@dataclass(frozen=True, slots=True)
class Streams:
    """One snapshot of all global generators. Never mutated after capture."""

    python: tuple[Any, ...]
    numpy: tuple[Any, ...]
    torch: Tensor
    #: None where CUDA is not in use
    cuda: Tensor | None

    def to_state(self) -> dict[str, Any]:
        """Tensors and plain numbers only, so that a checkpoint loads with `weights_only=True`."""
        version, words, gauss = self.python
        _, keys, position, has_gauss, cached = self.numpy
        return {
            "python_version": version,
            "python_words": torch.tensor(words, dtype=torch.int64),
            "python_gauss": gauss,
            "numpy_keys": torch.from_numpy(keys.astype(np.int64)),
            "numpy_position": int(position),
            "numpy_has_gauss": int(has_gauss),
            "numpy_cached": float(cached),
            "torch": self.torch,
            "cuda": self.cuda,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Streams:
        keys = state["numpy_keys"].numpy().astype(np.uint32)
        return cls(
            (state["python_version"], tuple(state["python_words"].tolist()), state["python_gauss"]),
            ("MT19937", keys, state["numpy_position"], state["numpy_has_gauss"], state["numpy_cached"]),
            state["torch"],
            state["cuda"],
        )


def capture() -> Streams:
    numpy_state = np.random.get_state()
    if not isinstance(numpy_state, tuple) or numpy_state[0] != "MT19937":
        raise RuntimeError("the global NumPy generator was replaced; only its default MT19937 can be switched")
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return Streams(random.getstate(), numpy_state, torch.default_generator.get_state(), cuda)


def restore(streams: Streams) -> None:
    random.setstate(streams.python)
    np.random.set_state(streams.numpy)
    torch.default_generator.set_state(streams.torch)
    if streams.cuda is not None:
        torch.cuda.set_rng_state(streams.cuda)


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def seeded(seed: int) -> Streams:
    """The streams of a process right after `seed_all(seed)`; the caller's own are left as they were."""
    with isolated():
        seed_all(seed)
        return capture()


@contextmanager
def isolated() -> Iterator[None]:
    """Whatever is drawn inside does not move the caller's streams."""
    before = capture()
    try:
        yield
    finally:
        restore(before)
