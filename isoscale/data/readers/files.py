"""Files of a source: which there are, how large they are, and how they are opened.

Local paths and patterns, compressed files by their suffix, and `fsspec` URLs (s3://, gs://, https://, memory://).
"""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, cast

from isoscale.errors import UserError

__all__ = ["File", "Span", "find_files", "identity_of", "open_file", "spans"]

Paths = str | Path | Iterable[str | Path]

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_FSSPEC = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz"}


@dataclass(frozen=True, slots=True)
class File:
    path: str
    num_bytes: int

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def compression(self) -> str:
        suffix = Path(self.name).suffix
        return suffix if suffix in _OPENERS else ""


@dataclass(frozen=True, slots=True)
class Span:
    """A partition of a file: bytes `start` to `stop`, None for its end."""

    file: File
    start: int = 0
    stop: int | None = None

    @property
    def label(self) -> str:
        whole = self.start == 0 and self.stop is None
        return self.file.name if whole else f"{self.file.name}[{self.start}:{self.stop}]"


def find_files(paths: Paths, field: str) -> list[File]:
    """Files of paths and patterns, each pattern's in order of their names. Raises UserError if there are none."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files = [file for one in given for file in _find(str(one), field)]
    if not files:
        raise UserError(field=field, value=paths, problem="no such files", remedy="give a path, a pattern or a list")
    return files


def spans(files: Sequence[File], partition_bytes: int | None, field: str) -> list[Span]:
    """One partition per file, or ranges of about so many bytes."""
    if partition_bytes is None:
        return [Span(file) for file in files]
    if partition_bytes < 1:
        raise UserError(
            field=f"{field}(partition_bytes=...)", value=partition_bytes, problem="not positive", remedy="give bytes"
        )
    out = []
    for file in files:
        if file.compression:
            raise UserError(
                field=f"{field}(partition_bytes=...)",
                value=file.name,
                problem="a compressed file cannot be entered in the middle",
                remedy="leave partition_bytes out: one partition per file",
            )
        count = max(1, -(-file.num_bytes // partition_bytes))
        bounds = [file.num_bytes * i // count for i in range(count + 1)]
        out += [Span(file, a, b if i < count - 1 else None) for i, (a, b) in enumerate(pairwise(bounds))]
    return out


def open_file(file: File) -> IO[bytes]:
    """For reading bytes, decompressed."""
    if "://" in file.path:
        import fsspec  # type: ignore[import-untyped]

        opened = fsspec.open(file.path, "rb", compression=_FSSPEC.get(file.compression)).open()
        return cast("IO[bytes]", opened)
    if file.compression:
        return cast("IO[bytes]", _OPENERS[file.compression](file.path, "rb"))
    return open(file.path, "rb", buffering=1 << 18)


def identity_of(kind: str, partitions: Sequence[Span], options: object = "") -> str:
    """By names and sizes, not directories: machines may have them in different places."""
    text = repr((kind, options, [(s.file.name, s.file.num_bytes, s.start, s.stop) for s in partitions]))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _find(path: str, field: str) -> list[File]:
    if "://" in path:
        try:
            import fsspec
        except ImportError:
            raise UserError(
                field=field, value=path, problem="needs fsspec", remedy="pip install fsspec, or give local paths"
            ) from None
        system, _, found = fsspec.get_fs_token_paths(path)
        names = sorted(found) if glob.has_magic(path) else found
        return [File(system.unstrip_protocol(name), int(system.size(name) or 0)) for name in names]
    names = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else [path]
    try:
        return [File(name, Path(name).stat().st_size) for name in names if not Path(name).is_dir()]
    except OSError as error:
        raise UserError(
            field=field, value=path, problem=str(error.strerror), remedy="give a path, a pattern or a list"
        ) from None
