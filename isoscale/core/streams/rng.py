"""Random streams of one identity: Python, NumPy, torch CPU and, where initialised, CUDA.

A `Streams` value is everything the global generators of a process hold. Capturing and restoring
is how a logical worker keeps its own randomness while it shares a process with others. Generators
that a user builds are not seen here; `job.keep_per_worker` switches those.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isoscale.core.streams import numpy_stream, python_stream
from isoscale.core.streams.numpy_stream import NumpyStream
from isoscale.core.streams.python_stream import PythonStream

__all__ = ["Streams", "capture", "draw_base_seed", "isolated", "restore", "seed_all", "seeded", "swap"]


@dataclass(frozen=True, slots=True)
class Streams:
    """One snapshot of all global generators. Never mutated after capture."""

    python: PythonStream
    numpy: NumpyStream
    torch: Tensor
    #: None where CUDA is not in use
    cuda: Tensor | None

    def to_state(self) -> dict[str, Any]:
        """Tensors and plain numbers only, so that a checkpoint loads with `weights_only=True`."""
        return {
            "python_version": random.Random.VERSION,
            "python_words": torch.tensor(self.python.words, dtype=torch.int64),
            "python_gauss": self.python.gauss,
            "numpy_keys": torch.from_numpy(self.numpy.words.astype(np.int64)),
            "numpy_position": self.numpy.position,
            "numpy_has_gauss": int(self.numpy.has_gauss),
            "numpy_cached": self.numpy.gauss,
            "torch": self.torch,
            "cuda": self.cuda,
        }

    def changes_since(self, before: Streams) -> list[bytes | None]:
        """Each generator's state as bytes, None where it is `before`'s: what other executors must be told."""
        python = None if self.python == before.python else _python_bytes(self.python)
        numpy = None if self.numpy == before.numpy else _numpy_bytes(self.numpy)
        cpu = None if torch.equal(self.torch, before.torch) else self.torch.numpy().tobytes()
        cuda = None if self.cuda is None else self.cuda.numpy().tobytes()
        return [python, numpy, cpu, cuda]

    def parts(self) -> list[bytes | None]:
        """Everything, in the form of `changes_since`."""
        cuda = None if self.cuda is None else self.cuda.numpy().tobytes()
        return [_python_bytes(self.python), _numpy_bytes(self.numpy), self.torch.numpy().tobytes(), cuda]

    @classmethod
    def from_parts(cls, parts: Sequence[bytes | None]) -> Streams:
        python, numpy, cpu, cuda = parts
        assert python is not None
        assert numpy is not None
        assert cpu is not None
        cuda_state = None if cuda is None else _byte_tensor(cuda)
        return cls(_python_state(python), _numpy_state(numpy), _byte_tensor(cpu), cuda_state)

    def with_changes(self, changes: Sequence[bytes | None]) -> Streams:
        python, numpy, cpu, cuda = changes
        return Streams(
            self.python if python is None else _python_state(python),
            self.numpy if numpy is None else _numpy_state(numpy),
            self.torch if cpu is None else _byte_tensor(cpu),
            self.cuda if cuda is None else _byte_tensor(cuda),
        )

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Streams:
        keys, position = state["numpy_keys"].numpy(), state["numpy_position"]
        return cls(
            PythonStream.of(state["python_words"].tolist(), state["python_gauss"]),
            NumpyStream.of(keys, position, state["numpy_has_gauss"], state["numpy_cached"]),
            # Generator.set_state reads from the beginning of the storage, whatever the tensor's offset in it.
            state["torch"].clone(),
            None if state["cuda"] is None else state["cuda"].clone(),
        )


def capture() -> Streams:
    return Streams(python_stream.capture(), numpy_stream.capture(), torch.default_generator.get_state(), _cuda())


def restore(streams: Streams) -> None:
    python_stream.restore(streams.python)
    numpy_stream.restore(streams.numpy)
    torch.default_generator.set_state(streams.torch)
    if streams.cuda is not None:
        torch.cuda.set_rng_state(streams.cuda)


def swap(streams: Streams) -> Streams:
    """Restore `streams` and return what was active: `capture` and `restore` in one, and cheaper."""
    python, numpy = python_stream.swap(streams.python), numpy_stream.swap(streams.numpy)
    before = Streams(python, numpy, torch.default_generator.get_state(), _cuda())
    torch.default_generator.set_state(streams.torch)
    if streams.cuda is not None:
        torch.cuda.set_rng_state(streams.cuda)
    return before


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


def draw_base_seed(streams: Streams) -> tuple[int, Streams]:
    """What `iter(DataLoader)` draws from the torch stream, one int64, and the streams after it."""
    generator = torch.Generator()
    generator.set_state(streams.torch)
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    return seed, Streams(streams.python, streams.numpy, generator.get_state(), streams.cuda)


_GAUSS = struct.Struct("<B?d")


def _python_bytes(stream: PythonStream) -> bytes:
    return _GAUSS.pack(random.Random.VERSION, stream.gauss is not None, stream.gauss or 0.0) + stream.raw


def _python_state(data: bytes) -> PythonStream:
    _, has_gauss, gauss = _GAUSS.unpack_from(data)
    return PythonStream(data[_GAUSS.size :], gauss if has_gauss else None)


def _numpy_bytes(stream: NumpyStream) -> bytes:
    return _GAUSS.pack(0, stream.has_gauss, stream.gauss) + stream.raw


def _numpy_state(data: bytes) -> NumpyStream:
    _, has_gauss, gauss = _GAUSS.unpack_from(data)
    return NumpyStream(data[_GAUSS.size :], has_gauss, gauss)


def _byte_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _cuda() -> Tensor | None:
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_rng_state() if is_used else None
