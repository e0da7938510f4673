"""NumPy's global random stream, switched at memory speed.

`numpy.random.get_state` and `set_state` cost some 35 us each, most of what a context switch costs. The
generator's state is 2,500 bytes at an address that NumPy publishes, so those are copied instead. What
lies elsewhere is the legacy interface's spare normal deviate; where there is one, or might be, NumPy's own
functions are used.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["NumpyStream", "capture", "restore", "swap"]

_WORDS = 624
#: the words, and the position of the next one as a C int
_BYTES = _WORDS * 4 + 4


@dataclass(frozen=True, slots=True)
class NumpyStream:
    raw: bytes
    has_gauss: bool
    gauss: float

    @property
    def position(self) -> int:
        return int.from_bytes(self.raw[-4:], "little")

    @property
    def words(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        return np.frombuffer(self.raw[:-4], dtype="<u4")

    @classmethod
    def of(cls, words: Any, position: int, has_gauss: bool, gauss: float) -> NumpyStream:
        raw = np.asarray(words).astype("<u4").tobytes() + int(position).to_bytes(4, "little")
        return cls(raw, bool(has_gauss), float(gauss))


#: what `swap` last loaded, to see whether it was used since
_loaded: NumpyStream | None = None


def capture() -> NumpyStream:
    state = np.random.get_state()
    if not isinstance(state, tuple) or state[0] != "MT19937":
        raise RuntimeError("the global NumPy generator was replaced; only its default MT19937 can be switched")
    _, words, position, has_gauss, gauss = state
    return NumpyStream.of(words, position, bool(has_gauss), gauss)


def restore(stream: NumpyStream) -> None:
    np.random.set_state(("MT19937", stream.words, stream.position, int(stream.has_gauss), stream.gauss))


def swap(stream: NumpyStream) -> NumpyStream:
    """Load `stream`, return what was there."""
    global _loaded
    address = _state_address()
    if address is None:
        before = capture()
        restore(stream)
        return before
    raw = ctypes.string_at(address, _BYTES)
    if _loaded is not None and raw == _loaded.raw and not _loaded.has_gauss:
        # Not one word was drawn, so no deviate can have been put aside either.
        before = _loaded
    else:
        before = capture()
    if before.has_gauss or stream.has_gauss:
        restore(stream)
    else:
        ctypes.memmove(address, stream.raw, _BYTES)
    _loaded = stream
    return before


def _state_address() -> int | None:
    """Where the global generator keeps its state; None if it is not the layout known here."""
    generator = np.random.mtrand._rand._bit_generator
    known = _addresses.get(id(generator))
    if known is None or known[0] is not generator:
        address = int(generator.ctypes.state_address) if type(generator) is np.random.MT19937 else None
        if address is not None and ctypes.string_at(address, _BYTES) != capture().raw:
            address = None
        known = _addresses[id(generator)] = (generator, address)
    return known[1]


_addresses: dict[int, tuple[Any, int | None]] = {}
