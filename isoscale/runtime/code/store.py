"""DIR/code: the code that a run began with, and goes on with.

    manifest.json        every kept file by its absolute path, with hash, size and place in the archive
    DIGEST.tar           their contents; `tar xf` unpacks them
    manifest-N.json      what ran before `--new-code`, with its archive
    bytecode/            compiled sources, so that they are compiled once
    extensions/          extension modules that were changed since, unpacked to be loaded

One archive, because a file of its own for each would have to be synced for itself, which takes longer than to read
them. The archive is on the disk before the manifest has its name. Contents are checked by their hash when they are
used, so a damaged archive is noticed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from isoscale.protocol.files import sync_directory, write_text_atomic
from isoscale.runtime.code.collect import Snapshot
from isoscale.runtime.code.libraries import inside
from isoscale.runtime.code.reading import read_regular
from isoscale.runtime.code.roots import Root

__all__ = [
    "MANIFEST",
    "Damaged",
    "Kept",
    "Manifest",
    "changed_since",
    "code_directory",
    "freeze",
    "manifest_of",
    "set_aside",
]

MANIFEST = "manifest.json"
_FORMAT = 1
#: a manifest of 10,000 files with long names is far below
_MANIFEST_BYTES = 64 * 2**20


class Damaged(Exception):  # noqa: N818 - a finding: its text is the reason for an error
    """Kept code that cannot be used."""


@dataclass(frozen=True, slots=True)
class Kept:
    sha256: str
    size: int
    #: in the archive
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What was kept. Without an `archive` the files lie where they are, and must be as they were."""

    script: str
    module: str
    cwd: str
    roots: tuple[Root, ...]
    files: Mapping[str, Kept]
    packages: Mapping[str, str] = field(default_factory=dict)
    archive: str = ""
    python: str = ""
    #: over names and hashes, wherever they lie
    digest: str = ""

    @property
    def total_bytes(self) -> int:
        return sum(kept.size for kept in self.files.values())

    @property
    def script_sha256(self) -> str:
        return self.files[self.script].sha256

    def name_of(self, path: str) -> str:
        """As a person would name it: from the script's directory, else from the working directory."""
        for directory in (os.path.dirname(self.script), self.cwd):
            if inside(path, directory):
                return os.path.relpath(path, directory)
        return path

    def beside_script(self) -> dict[str, str]:
        """Hash by relative path, of the script's own directory: the same wherever that lies. Names are plain text."""
        home = os.path.dirname(self.script)
        return {
            os.path.relpath(path, home).encode("utf-8", "backslashreplace").decode(): kept.sha256
            for path, kept in self.files.items()
            if inside(path, home)
        }

    def to_json(self) -> str:
        """Names that are no text survive, as Python's own escapes."""
        fields = {"format": _FORMAT, **asdict(self)}
        fields["files"] = {path: [kept.sha256, kept.size, kept.offset] for path, kept in self.files.items()}
        return json.dumps(fields, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Raises Damaged."""
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.pop("format") != _FORMAT:
                raise Damaged("it was written by another version of isoscale")
            fields["files"] = {path: Kept(str(k[0]), int(k[1]), int(k[2])) for path, k in fields["files"].items()}
            fields["roots"] = tuple(Root(**root) for root in fields["roots"])
            manifest = cls(**fields)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise Damaged(f"the manifest is damaged ({error})") from error
        if manifest.script not in manifest.files or manifest.digest != _digest(manifest):
            raise Damaged("the manifest was changed or damaged")
        return manifest

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Raises Damaged, and FileNotFoundError if there is none."""
        try:
            return cls.from_json(read_regular(str(path), _MANIFEST_BYTES))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Damaged(f"the manifest cannot be read ({error.strerror or error})") from error


def code_directory(out: str | Path) -> Path:
    return Path(out) / "code"


def manifest_of(snapshot: Snapshot) -> Manifest:
    """Of files that are not kept: whoever uses it reads them where they lie, and checks them."""
    files = {path: Kept(hashlib.sha256(data).hexdigest(), len(data)) for path, data in snapshot.files.items()}
    return _manifest(snapshot, files, "")


def freeze(directory: Path, snapshot: Snapshot) -> Manifest:
    """Keep a run's code in DIR/code. Raises OSError; then no manifest is there, or still the old one."""
    directory.mkdir(parents=True, exist_ok=True)
    digest = manifest_of(snapshot).digest
    archive = directory / f"{digest[:24]}.tar"
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


def changed_since(manifest: Manifest, paths: Iterable[str] | None = None) -> list[str]:
    """Names of kept files that are not on the disk as they were; "NAME (gone)" for those that are not there."""
    changed = []
    for path in manifest.files if paths is None else paths:
        kept = manifest.files[path]
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
    return Manifest(**{name: getattr(manifest, name) for name in manifest.__slots__} | {"digest": _digest(manifest)})


def _digest(manifest: Manifest) -> str:
    total = hashlib.sha256()
    for name, path in sorted((manifest.name_of(path), path) for path in manifest.files):
        total.update(f"{name}\0{manifest.files[path].sha256}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


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
