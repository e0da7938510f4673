"""DIR/code: the code that a run began with, and goes on with.

    manifest.json        every kept file by its absolute path, with hash, size and place in the archive DIGEST.tar
    their contents; `tar xf` unpacks them manifest-N.json      what ran before `--new-code`, with its archive bytecode/
    compiled sources, so that they are compiled once extensions/          extension modules that were changed since,
    unpacked to be loaded imports.json         the first version of whatever else was imported, and of the data
    (`runtime.coordinator.provenance`) hashes.json          of installed files, by their times (`hashes`)

One archive, because a file of its own for each would have to be synced for itself, which takes longer than to read
them. The archive is on the disk before the manifest has its name. Contents are checked by their hash when they are
used, so a damaged archive is noticed.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from isoscale.protocol.files import sync_directory, write_text_atomic
from isoscale.runtime.code.collect import Snapshot
from isoscale.runtime.code.manifest import MANIFEST, Kept, Manifest, digest_of
from isoscale.runtime.code.reading import read_regular

__all__ = ["changed_since", "code_directory", "freeze", "manifest_of", "set_aside"]


def code_directory(out: str | Path) -> Path:
    return Path(out) / "code"


def manifest_of(snapshot: Snapshot) -> Manifest:
    """Of files that are not kept: whoever uses it reads them where they lie, and checks them."""
    files = {path: Kept(hashlib.sha256(data).hexdigest(), len(data)) for path, data in snapshot.files.items()}
    return _manifest(snapshot, files, "")


def freeze(directory: Path, snapshot: Snapshot) -> Manifest:
    """Keep a run's code in DIR/code. Raises OSError; then no manifest is there, or still the old one."""
    directory.mkdir(parents=True, exist_ok=True)
    # Named by all that is in it: an archive of this name is this archive.
    archive = directory / f"{digest_of(manifest_of(snapshot).files, str)[:24]}.tar"
    temporary = directory / f".{archive.name}.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as file:
            kept = _write_archive(file, snapshot.files)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(archive)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(directory)
    manifest = _manifest(snapshot, kept, archive.name)
    write_text_atomic(directory / MANIFEST, manifest.to_json())
    return manifest


def set_aside(directory: Path) -> Path:
    """The present manifest under a name of its own, for the record, before another one takes its place."""
    taken = [
        int(match[1]) for one in directory.iterdir() if (match := re.fullmatch(r"manifest-([0-9]+)\.json", one.name))
    ]
    path = directory / f"manifest-{max(taken, default=0) + 1}.json"
    write_text_atomic(path, (directory / MANIFEST).read_text(encoding="utf-8"))
    return path


def changed_since(manifest: Manifest) -> list[str]:
    """Names of kept files that are not on the disk as they were; "NAME (gone)" for those that are not there."""
    changed = []
    for path, kept in manifest.files.items():
        try:
            data = read_regular(path, kept.size)
            if len(data) == kept.size and hashlib.sha256(data).hexdigest() == kept.sha256:
                continue
            changed.append(manifest.name_of(path))
        except FileNotFoundError:
            changed.append(f"{manifest.name_of(path)} (gone)")
        except OSError:  # longer than it was, or not to be read any more
            changed.append(manifest.name_of(path))
    return changed


def _manifest(snapshot: Snapshot, files: Mapping[str, Kept], archive: str) -> Manifest:
    manifest = Manifest(
        script=snapshot.script,
        module=snapshot.module,
        cwd=snapshot.cwd,
        roots=snapshot.roots,
        files=files,
        packages=snapshot.packages,
        archive=archive,
        python=sys.version.split()[0],
    )
    return replace(manifest, digest=digest_of(files, manifest.name_of))


def _write_archive(file: io.BufferedWriter, files: Mapping[str, bytes]) -> dict[str, Kept]:
    """A tar archive, header by header: so the place of every file is known without reading it again."""
    kept = {}
    for path, data in sorted(files.items()):
        info = tarfile.TarInfo(path.lstrip("/"))
        info.size = len(data)
        file.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        kept[path] = Kept(hashlib.sha256(data).hexdigest(), len(data), file.tell())
        file.write(data)
        file.write(bytes(-len(data) % tarfile.BLOCKSIZE))
    file.write(bytes(2 * tarfile.BLOCKSIZE))
    return kept
