"""Compiles the C++ beside it when it is first needed and calls it; without a compiler there is simply no kernel.

The library goes to the user's cache directory under a name that holds the hash of sources, options and compiler, so
that a change of any makes another one. It ends with its own checksum: a damaged one is made anew. Where that directory
cannot be used (read-only, or others may write there), every process compiles for itself. All paths of the kernel give
the same bits; `path` is for tests and timing.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import torch

__all__ = ["AVX2", "AVX512", "PLAIN", "Kernel", "Window", "build", "load"]

PLAIN, AVX2, AVX512 = range(3)
_SOURCES = ("kernel.cpp", "convolution.cpp")
#: no -march: one library serves every machine that shares a home directory, and looks at the processor when it runs
_OPTIONS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off")
_COMPILERS = ("c++", "g++", "clang++")
_TIME_LIMIT_S = 120
#: a vector of pixels may read so many elements past the last
_SLACK = 15
#: of a convolution: the size of its kernel, stride, padding and dilation, y before x in each
Window = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
_log = logging.getLogger(__name__)


class Kernel:
    """C does not check: whoever calls vouches for float32, shapes, contiguity, and indices below `width`
    (`PackedMatrix` does)."""

    def __init__(self, library: Path) -> None:
        code = ctypes.CDLL(str(library))
        self._multiply = code.isoscale_balanced_multiply
        self._multiply.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 5 + [ctypes.c_int]
        self._multiply.restype = None
        self._convolve = code.isoscale_balanced_convolve
        self._convolve.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int64] * 5 + [ctypes.c_char_p, ctypes.c_int]
        self._convolve.restype = None
        #: the fastest path of this processor
        self.best_path = int(code.isoscale_balanced_best_path())

    def multiply(
        self,
        values: torch.Tensor,
        indices: torch.Tensor,
        x: torch.Tensor,
        out: torch.Tensor,
        *,
        width: int,
        bias: torch.Tensor | None = None,
        path: int | None = None,
    ) -> None:
        """x [batch, columns] -> out [batch, rows]."""
        _, blocks, keep, _ = values.shape
        batch, rows = out.shape
        self._multiply(
            values.data_ptr(),
            indices.data_ptr(),
            x.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            rows,
            blocks,
            width,
            keep,
            batch,
            self.best_path if path is None else min(path, self.best_path),
        )

    def convolve(
        self,
        values: torch.Tensor,
        indices: torch.Tensor,
        x: torch.Tensor,
        out: torch.Tensor,
        *,
        width: int,
        window: Window,
        bias: torch.Tensor | None = None,
        path: int | None = None,
    ) -> None:
        """x [images, channels, height, width] -> out [images, rows, height, width]."""
        _, blocks, keep, _ = values.shape
        field_size, as_bytes = _field(window, tuple(x.shape[1:]))
        field = x.new_empty(field_size)
        offsets = torch.empty(blocks * width, dtype=torch.int64)
        self._convolve(
            values.data_ptr(),
            indices.data_ptr(),
            x.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            offsets.data_ptr(),
            field.data_ptr(),
            out.shape[1],
            blocks,
            width,
            keep,
            len(x),
            as_bytes,
            self.best_path if path is None else min(path, self.best_path),
        )


@functools.lru_cache(maxsize=256)
def _field(window: Window, image: tuple[int, ...]) -> tuple[int, bytes]:
    """Elements that one padded image takes, divided into phases of the stride, and the geometry as C reads it."""
    channels, *size = image
    _, strides, paddings, _ = window
    area = channels
    for length, stride, padding in zip(size, strides, paddings, strict=True):
        area *= -(-(length + 2 * padding) // stride) * stride
    return area + _SLACK, struct.pack("11q", *image, *(value for pair in window for value in pair))


@functools.cache
def load() -> Kernel | None:
    """The kernel of this process, compiled at most once per machine and user; None where that fails."""
    try:
        try:
            return Kernel(build(Path.home() / ".cache" / "isoscale"))
        except (OSError, RuntimeError) as error:
            _log.info("no kernel from the cache directory, compiling for this process: %s", error)
        with tempfile.TemporaryDirectory(prefix="isoscale-") as directory:
            return Kernel(build(Path(directory)))  # once loaded, it needs no file
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("no compiled kernel, torch does instead: %s", error)
        return None


def build(cache: Path) -> Path:
    """The compiled library in `cache`. OSError or SubprocessError if there is no compiler or no place for it."""
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise FileNotFoundError(f"no compiler: none of {', '.join(_COMPILERS)} is on the PATH")
    sources = {name: (resources.files(__package__) / name).read_bytes() for name in _SOURCES}
    made_by = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=_TIME_LIMIT_S).stdout
    parts = (*sources.values(), " ".join(_OPTIONS).encode(), made_by, platform.machine().encode())
    library = cache / f"balanced-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(cache)
    if not _is_whole(library):
        with tempfile.TemporaryDirectory(dir=cache) as directory:
            made = _compile(compiler, sources, Path(directory))
            # Whole or not at all: another process may be looking for it now.
            os.replace(made, library)
    return library


def _compile(compiler: str, sources: dict[str, bytes], directory: Path) -> Path:
    for name, text in sources.items():
        (directory / name).write_bytes(text)
    made = directory / "balanced.so"
    command = [compiler, *_OPTIONS, *(str(directory / name) for name in sources), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, timeout=_TIME_LIMIT_S)
    if done.returncode:
        raise OSError(f"{compiler} failed: {done.stderr.decode(errors='replace')[-500:]}")
    code = made.read_bytes()
    # Loaders do not look past the sections of a library.
    made.write_bytes(code + hashlib.sha256(code).digest())
    return made


def _is_whole(library: Path) -> bool:
    """A library cut short would not be refused by the loader but kill the process when it is read."""
    if not library.exists():
        return False
    content = library.read_bytes()
    return hashlib.sha256(content[:-32]).digest() == content[-32:]


def _check_private(cache: Path) -> None:
    """What lies there is executed."""
    found = cache.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{cache} is not this user's alone; chmod go-w {cache}, or remove it")
