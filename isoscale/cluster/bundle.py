"""Code on its way from whoever submits a job to the service, and as the service keeps it: STATE/code/ID.

A bundle is what `runtime.code` writes for a run, as bytes: the length of the manifest (8 bytes), the manifest, the
archive. Nothing is compressed, so a bundle is as large as it looks; nothing is unpacked, so no name in it becomes a
path. Its id is the SHA-256 of the manifest, which names the hash of every file: what was sent twice is kept once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isoscale.errors import UserError
from isoscale.protocol.files import sync_directory
from isoscale.runtime.code.collect import Snapshot
from isoscale.runtime.code.manifest import MANIFEST, Damaged, Manifest
from isoscale.runtime.code.store import code_directory, freeze

__all__ = ["MAX_BYTES", "Bundle", "Codes", "is_code_id", "pack"]

#: `runtime.code` keeps at most 64 MiB of at most 10,000 files
MAX_BYTES = 96 * 2**20
_MAX_MANIFEST, _MAX_FILES = 16 * 2**20, 10_000
#: several files may be one piece of the archive; this much they may be together
_MAX_UNPACKED = 4 * MAX_BYTES
_LENGTH = struct.Struct("!Q")
_ID = re.compile(r"[0-9a-f]{64}")
_ARCHIVE = re.compile(r"[0-9a-f]{24}\.tar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    id: str
    manifest: bytes
    archive: bytes

    def data(self) -> bytes:
        return _LENGTH.pack(len(self.manifest)) + self.manifest + self.archive


def pack(snapshot: Snapshot) -> Bundle:
    """The code as it is now. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix="isoscale-code-") as folder:
        manifest = freeze(Path(folder), snapshot)
        text = (Path(folder) / MANIFEST).read_bytes()
        archive = (Path(folder) / manifest.archive).read_bytes()
    return Bundle(id=hashlib.sha256(text).hexdigest(), manifest=text, archive=archive)


def is_code_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


class Codes:
    """STATE/code."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sweep()

    def manifest(self, code: str) -> Manifest:
        """Raises UserError if it was not sent, or is damaged."""
        problem = "no such code was uploaded"
        if is_code_id(code):
            try:
                return Manifest.read(self._path / code / MANIFEST)
            except FileNotFoundError:
                pass
            except Damaged as reason:
                problem = str(reason)
        raise UserError(field="code", value=code, problem=problem, remedy="send it first: PUT /api/code/ID")

    def __contains__(self, code: str) -> bool:
        return is_code_id(code) and (self._path / code / MANIFEST).is_file()

    def receive(self, code: str, data: bytes) -> Manifest:
        """Keep a bundle. Raises UserError for what is none, or not the one that it is said to be."""
        manifest, text, archive = _checked(code, data)
        temporary = Path(tempfile.mkdtemp(dir=self._path, prefix=".incoming-"))
        try:
            _write_synced(temporary / manifest.archive, archive)
            _write_synced(temporary / MANIFEST, text)
            sync_directory(temporary)
            try:
                temporary.rename(self._path / code)
            except OSError:
                if code not in self:  # else somebody else sent the same
                    raise
            sync_directory(self._path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return manifest

    def give_to(self, code: str, directory: Path) -> None:
        """Into a run's directory, as if the run had kept it itself. Raises OSError."""
        target = code_directory(directory)
        target.mkdir(parents=True, exist_ok=True)
        # The manifest last: a run that finds one finds its archive.
        names = sorted(os.listdir(self._path / code), key=lambda name: name == MANIFEST)
        for name in names:
            if not (target / name).exists():
                # A link, so that a hundred jobs of one code do not fill the disk. Nobody writes into these files.
                os.link(self._path / code / name, target / name)
        sync_directory(target)

    def _sweep(self) -> None:
        """What a service that died was receiving."""
        for leftover in self._path.glob(".incoming-*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _checked(code: str, data: bytes) -> tuple[Manifest, bytes, memoryview]:
    if len(data) < _LENGTH.size:
        raise _refused(code, "too short")
    (length,) = _LENGTH.unpack_from(data)
    if length > _MAX_MANIFEST or _LENGTH.size + length > len(data):
        raise _refused(code, "its manifest has an impossible length")
    text = data[_LENGTH.size : _LENGTH.size + length]
    archive = memoryview(data)[_LENGTH.size + length :]
    if hashlib.sha256(text).hexdigest() != code:
        raise _refused(code, "its manifest has another hash")
    try:
        manifest = Manifest.from_json(text)
    except Damaged as reason:
        raise _refused(code, str(reason)) from None
    if not _ARCHIVE.fullmatch(manifest.archive):
        raise _refused(code, "its archive has an impossible name")
    if len(manifest.files) > _MAX_FILES:
        raise _refused(code, f"more than {_MAX_FILES} files")
    for problem in _wrong_files(manifest, archive):
        raise _refused(code, problem)
    return manifest, text, archive


def _wrong_files(manifest: Manifest, archive: memoryview) -> Iterator[str]:
    regions: dict[tuple[int, int], str] = {}
    if sum(max(0, kept.size) for kept in manifest.files.values()) > _MAX_UNPACKED:
        yield f"more than {_MAX_UNPACKED:,} bytes when unpacked"
    elif sum(max(0, size) for _, size in {(kept.offset, kept.size) for kept in manifest.files.values()}) > len(archive):
        yield "files that overlap"  # to hash them would take a day
    for path, kept in manifest.files.items():
        region = (kept.offset, kept.size)
        if not os.path.isabs(path) or "\0" in path:
            yield "a file without an absolute path"
        elif kept.size < 0 or kept.offset < 0 or kept.offset + kept.size > len(archive):
            yield "a file that is not in the archive"
        elif (regions.get(region) or _hash_of(archive, *region)) != kept.sha256:
            yield "a file that has another hash"
        else:
            regions[region] = kept.sha256


def _hash_of(archive: memoryview, offset: int, size: int) -> str:
    return hashlib.sha256(archive[offset : offset + size]).hexdigest()


def _write_synced(path: Path, data: bytes | memoryview) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _refused(code: str, problem: str) -> UserError:
    return UserError(field="code", value=code, problem=f"not a bundle: {problem}", remedy="send it again")
