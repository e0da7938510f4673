"""What a run has kept, as a value: every file by its path, with hash, size and place. Small enough for every process.

Reading one checks that it is whole; the contents it speaks of are checked by whoever reads them (`tree`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from isoscale.runtime.code.libraries import inside
from isoscale.runtime.code.reading import read_regular

__all__ = ["MANIFEST", "Damaged", "Kept", "Manifest", "Root", "digest_of"]

MANIFEST = "manifest.json"
_FORMAT = 1
#: a manifest of 10,000 files with long names is far below
_MANIFEST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A directory that holds code of the run."""

    #: absolute, as it stands on the import path
    path: str
    #: script, working directory, import path or editable
    why: str
    #: left out, instead of refused, if it holds more than can be kept
    optional: bool = False
    #: nothing but the script is looked at: what lies beside it are libraries
    script_only: bool = False


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
        fields = {"format": _FORMAT, **{one.name: getattr(self, one.name) for one in dataclass_fields(self)}}
        fields["roots"] = [asdict(root) for root in self.roots]
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
        if manifest.script not in manifest.files or manifest.digest != digest_of(manifest.files, manifest.name_of):
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


def digest_of(files: Mapping[str, Kept], name_of: Callable[[str], str]) -> str:
    """Over names and hashes."""
    total = hashlib.sha256()
    for name, path in sorted((name_of(path), path) for path in files):
        total.update(f"{name}\0{files[path].sha256}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()
