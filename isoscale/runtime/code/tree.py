"""Kept code as imports look for it: by directory and name, and by the path of a file. Checks every byte it hands out.

A file is found under the path that it had, however a process comes to write that: relative, with dots, through
symbolic links. What was not kept is not in here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Set
from pathlib import Path

from isoscale.runtime.code.libraries import inside, is_library
from isoscale.runtime.code.manifest import MANIFEST, Kept, Manifest
from isoscale.runtime.code.reading import read_regular

__all__ = ["Tree"]

_NOTHING: Set[str] = frozenset()


class Tree:
    def __init__(self, manifest: Manifest, directory: Path | None) -> None:
        """`directory` holds the archive. Without one files are read where they lie, and must be as they were."""
        self.manifest = manifest
        self.directory = directory if manifest.archive else None
        self._files: dict[str, set[str]] = {}
        self._subdirectories: dict[str, set[str]] = {}
        roots = {root.path for root in manifest.roots}
        for path in manifest.files:
            directory_, name = os.path.split(path)
            self._files.setdefault(directory_, set()).add(name)
            while directory_ not in roots and directory_ != os.path.dirname(directory_):
                directory_, name = os.path.split(directory_)
                if name in self._subdirectories.setdefault(directory_, set()):
                    break
                self._subdirectories[directory_].add(name)
        self._real_roots = {os.path.realpath(root): root for root in roots}
        #: a directory as a process writes it, and as it is written here; None if it is not in here
        self._known: dict[str, str | None] = {}

    @classmethod
    def load(cls, path: Path) -> Tree:
        """Raises Damaged or OSError."""
        return cls(Manifest.read(path), path.parent)

    @property
    def path(self) -> Path | None:
        """Of its manifest, where another process can read it."""
        return None if self.directory is None else self.directory / MANIFEST

    def directory_of(self, directory: str) -> str | None:
        """The kept directory that is meant, None if nothing in it was kept."""
        if directory not in self._known:
            found = self._find(os.path.abspath(directory))
            if not os.path.isabs(directory):  # it means another place after the next os.chdir
                return found
            self._known[directory] = found
        return self._known[directory]

    def _find(self, directory: str) -> str | None:
        if self._has(directory):
            return directory
        if is_library(directory):  # most are, and links need not be followed to know it
            return None
        real = os.path.realpath(directory)
        for real_root, root in self._real_roots.items():
            if inside(real, real_root):
                candidate = os.path.normpath(os.path.join(root, os.path.relpath(real, real_root)))
                if self._has(candidate):
                    return candidate
        return None

    def _has(self, directory: str) -> bool:
        return directory in self._files or directory in self._subdirectories

    def names_in(self, directory: str) -> Set[str]:
        """Of files kept in a directory as `directory_of` gives it."""
        return self._files.get(directory, _NOTHING)

    def subdirectories_of(self, directory: str) -> Set[str]:
        """Of those in which something was kept."""
        return self._subdirectories.get(directory, _NOTHING)

    def find(self, path: str) -> str | None:
        """The kept file that is meant by a path, None if it was not kept."""
        if path in self.manifest.files:
            return path
        directory, name = os.path.split(path)
        known = self.directory_of(directory or ".")
        return os.path.join(known, name) if known is not None and name in self.names_in(known) else None

    def kept(self, path: str) -> Kept | None:
        found = self.find(path)
        return None if found is None else self.manifest.files[found]

    def read(self, found: str) -> bytes:
        """The contents of a file that `find` gave. Raises ImportError if they are not to be had."""
        kept = self.manifest.files[found]
        try:
            data = self._read_archive(kept) if self.directory is not None else read_regular(found, kept.size)
        except OSError as error:
            raise ImportError(f"{found}: the code that the job began with cannot be read ({error})") from None
        if hashlib.sha256(data).hexdigest() != kept.sha256:
            where = "is damaged in DIR/code" if self.directory is not None else "was changed since this executor joined"
            raise ImportError(f"{found}: the code that the job began with {where}")
        return data

    def _read_archive(self, kept: Kept) -> bytes:
        assert self.directory is not None
        with open(self.directory / self.manifest.archive, "rb", buffering=0) as file:
            return os.pread(file.fileno(), kept.size, kept.offset)

    def is_live(self, found: str) -> bool:
        """Whether the file on the disk is still the one that was kept."""
        kept = self.manifest.files[found]
        try:
            return hashlib.sha256(read_regular(found, kept.size)).hexdigest() == kept.sha256
        except OSError:
            return False
