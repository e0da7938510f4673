"""Compiles kernel.cpp when it is first needed and calls it; without a compiler there is simply no kernel.

The library goes to the user's cache directory under a name that holds the hash of source, options and compiler, so
that a change of any makes another one. All paths of the kernel give the same bits; `path` is for tests and timing.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import torch

__all__ = ["AVX2", "AVX512", "PLAIN", "Kernel", "build", "load"]

PLAIN, AVX2, AVX512 = range(3)
#: no -march: one library serves every machine that shares a home directory, and looks at the processor when it runs
_OPTIONS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off")
_COMPILERS = ("c++", "g++", "clang++")
_TIME_LIMIT_S = 120
_log = logging.getLogger(__name__)


class Kernel:
    def __init__(self, library: Path) -> None:
        code = ctypes.CDLL(str(library))
        self._multiply = code.isoscale_balanced_multiply
        self._multiply.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 5 + [ctypes.c_int]
        self._multiply.restype = None
        #: the fastest path of this processor
        self.best_path = int(code.isoscale_balanced_best_path())

    def multiply(
        self,
        values: torch.Tensor,
        indices: torch.Tensor,
        x: torch.Tensor,
        *,
        width: int,
        path: int | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x [batch, columns] -> [batch, rows padded to whole groups], in float32, all contiguous.

        C does not check: whoever calls vouches for shapes and for indices below `width` (`PackedMatrix` does).
        """
        groups, blocks, keep, lanes = values.shape
        batch = x.shape[0]
        y = x.new_empty(batch, groups * lanes) if out is None else out
        self._multiply(
            values.data_ptr(),
            indices.data_ptr(),
            x.data_ptr(),
            y.data_ptr(),
            groups,
            blocks,
            width,
            keep,
            batch,
            self.best_path if path is None else min(path, self.best_path),
        )
        return y


@functools.cache
def load() -> Kernel | None:
    """The kernel of this process, compiled at most once per machine and user; None where that fails."""
    try:
        return Kernel(build(Path.home() / ".cache" / "isoscale"))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        _log.warning("no compiled kernel, torch does instead: %s", error)
        return None


def build(cache: Path) -> Path:
    """The compiled library in `cache`. OSError or SubprocessError if there is no compiler or no place for it."""
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise FileNotFoundError(f"no compiler: none of {', '.join(_COMPILERS)} is on the PATH")
    source = (resources.files(__package__) / "kernel.cpp").read_bytes()
    made_by = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=_TIME_LIMIT_S).stdout
    parts = (source, " ".join(_OPTIONS).encode(), made_by, platform.machine().encode())
    library = cache / f"balanced-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"
    if not library.exists():
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as directory:
            made = Path(directory) / library.name
            command = [compiler, *_OPTIONS, "-x", "c++", "-", "-o", str(made)]
            done = subprocess.run(command, input=source, capture_output=True, timeout=_TIME_LIMIT_S)
            if done.returncode:
                raise OSError(f"{compiler} failed: {done.stderr.decode(errors='replace')[-500:]}")
            # Whole or not at all: another process may be looking for it now.
            os.replace(made, library)
    return library
