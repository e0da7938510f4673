"""Frozen code in a run's storage: put there by its coordinator, brought to machines that do not see its directory.

The archive first and the manifest last, in both directions. A machine fetches it once for all its executors.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from isoscale.protocol.files import write_text_atomic
from isoscale.runtime.code.manifest import MANIFEST, Damaged, Manifest
from isoscale.runtime.storage import names
from isoscale.runtime.storage.client import Storage

__all__ = ["fetch_code", "keep_code"]

_ARCHIVE = re.compile(r"[0-9a-f]{1,64}\.tar")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MANIFEST_BYTES = 64 * 2**20


def keep_code(storage: Storage, directory: Path) -> None:
    """Put what DIR/code holds into the storage, unless it is there. Raises OSError."""
    manifest = Manifest.read(directory / MANIFEST)
    data = (directory / MANIFEST).read_bytes()
    key = names.code(manifest.digest, MANIFEST)
    with contextlib.suppress(FileNotFoundError):
        if storage.read(key, _MANIFEST_BYTES) == data:
            return
    storage.upload(names.code(manifest.digest, manifest.archive), directory / manifest.archive)
    storage.write(key, data)


def fetch_code(storage: Storage, digest: str, directory: Path) -> Path:
    """Where its manifest is on this machine, in a directory for this very code inside `directory`.

    Contents of files are checked by whoever reads them (`tree`). Raises OSError, and Damaged if the storage holds
    something else.
    """
    if not _DIGEST.fullmatch(digest):
        raise Damaged(f"{digest!r} is no digest of code")
    place = directory / f"code-{digest[:24]}"
    data = storage.read(names.code(digest, MANIFEST), _MANIFEST_BYTES)
    manifest = Manifest.from_json(data)
    if manifest.digest != digest or not _ARCHIVE.fullmatch(manifest.archive):
        raise Damaged("the storage holds other code under this name")
    with contextlib.suppress(OSError):
        if (place / MANIFEST).read_bytes() == data and (place / manifest.archive).stat().st_size > 0:
            return place / MANIFEST
    place.mkdir(mode=0o700, exist_ok=True)
    key = names.code(digest, manifest.archive)
    storage.download(key, place / manifest.archive, storage.size(key), "")
    os.chmod(place / manifest.archive, 0o600)
    write_text_atomic(place / MANIFEST, data.decode(), mode=0o600)
    return place / MANIFEST
