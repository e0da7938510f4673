"""NumPy's global random stream, switched at memory speed.

`numpy.random.get_state` and `set_state` cost some 35 us each, most of what a context switch costs. The
generator's state is 2,500 bytes at an address that NumPy publishes, so those are copied instead. The legacy
interface's spare normal deviate lies in the object itself, where it is looked for once. Where either is not found as
expected, NumPy's own functions are used.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["NumpyStream", "capture", "restore", "swap"]

_WORDS = 624
#: the words, and the position of the next one as a C int
_BYTES = _WORDS * 4 + 4
_SPARE = struct.Struct("<i4xd")
#: a number that is nowhere by chance
_PROBE = 0.8373194027561093


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


@dataclass(frozen=True, slots=True)
class _Places:
    """Memory of the global generator: its state, and the spare normal deviate (a C int, and a double after it)."""

    state: memoryview
    spare: memoryview


def capture() -> NumpyStream:
    places = _places()
    if places is None:
        return _capture_slowly()
    has_gauss, gauss = _SPARE.unpack(places.spare)
    return NumpyStream(bytes(places.state), bool(has_gauss), gauss)


def restore(stream: NumpyStream) -> None:
    places = _places()
    if places is None:
        np.random.set_state(("MT19937", stream.words, stream.position, int(stream.has_gauss), stream.gauss))
        return
    places.state[:] = stream.raw
    places.spare[:] = _SPARE.pack(stream.has_gauss, stream.gauss)


def swap(stream: NumpyStream) -> NumpyStream:
    """Load `stream`, return what was there."""
    before = capture()
    restore(stream)
    return before


def _capture_slowly() -> NumpyStream:
    state = np.random.get_state()
    if not isinstance(state, tuple) or state[0] != "MT19937":
        raise RuntimeError("the global NumPy generator was replaced; only its default MT19937 can be switched")
    _, words, position, has_gauss, gauss = state
    return NumpyStream.of(words, position, bool(has_gauss), gauss)


def _places() -> _Places | None:
    """None if the global generator is not the one, or is not laid out, as known here."""
    owner = np.random.mtrand._rand
    generator = owner._bit_generator
    known = _known.get(id(generator))
    if known is None or known[0] is not generator:
        known = _known[id(generator)] = (generator, _find_places(owner, generator))
    return known[1]


def _find_places(owner: Any, generator: Any) -> _Places | None:
    if type(generator) is not np.random.MT19937 or type(owner) is not np.random.RandomState:
        return None
    offset = _spare_offset()
    state = _view(int(generator.ctypes.state_address), _BYTES)
    if offset is None or state != _capture_slowly().raw:
        return None
    return _Places(state, _view(id(owner) + offset, _SPARE.size))


def _view(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _spare_offset() -> int | None:
    """Where a RandomState keeps its spare deviate: looked for in one whose deviate is known."""
    probe = np.random.RandomState(0)
    state: Any = probe.get_state()
    _, words, position, _, _ = state
    size, found = type(probe).__basicsize__, []
    for has_gauss, gauss in ((1, _PROBE), (0, _PROBE), (1, -_PROBE)):
        probe.set_state(("MT19937", words, position, has_gauss, gauss))
        # The four bytes between the two are nobody's.
        memory, flag, value = ctypes.string_at(id(probe), size), struct.pack("<i", has_gauss), struct.pack("<d", gauss)
        at = memory.find(value)
        found.append(at - 8 if at >= 8 and memory.count(value) == 1 and memory[at - 8 : at - 4] == flag else None)
    return found[0] if found[0] is not None and found.count(found[0]) == len(found) else None


_known: dict[int, tuple[Any, _Places | None]] = {}
