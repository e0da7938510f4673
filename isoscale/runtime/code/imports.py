"""What this process has imported, by hash: of every module that is a file, as soon as it is there.

A thread looks when something was imported, and only then; training costs nothing. Modules of the standard library are
left out, the version of Python stands for them. So are such as have no file, and those that were loaded by hand from a
path that no finder knows of.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from isoscale.runtime.code.hashes import Hashes
from isoscale.runtime.code.libraries import installed_versions, is_library, is_standard, library_directories
from isoscale.runtime.code.tree import Tree

__all__ = ["Imported", "Imports", "watch", "watching"]

#: how long an import may take before it is looked at; those that follow it closely are looked at together
_SETTLE_S = 0.1
#: enough to tell versions apart, half as long as SHA-256 is
_DIGITS = 32

_imports: Imports | None = None


@dataclass(slots=True)
class Imported:
    """Hash by module; and where those lie that are not installed libraries."""

    modules: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)


def watch(tree: Tree) -> Imports:
    """Begin, in a process that serves kept code."""
    global _imports
    _imports = Imports(tree)
    return _imports


def watching() -> Imports | None:
    return _imports


class Imports:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._hashes = Hashes(tree.directory / "hashes.json" if tree.directory is not None else None)
        self._known: set[str] = set()
        #: number and last name of the modules at the last look
        self._newest = (0, "")
        self._all = Imported()
        self._report: Callable[[Imported], None] | None = None
        self._changed = threading.Event()
        sys.meta_path.insert(0, self)
        threading.Thread(target=self._run, name="imports", daemon=True).start()
        self._changed.set()  # what was imported before

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """As the first of `sys.meta_path`: finds nothing, but knows that somebody looks."""
        if os.getpid() == self._owner:  # the thread does not live in a fork, and may have held the event's lock
            self._changed.set()
        return None

    def subscribe(self, report: Callable[[Imported], None]) -> Imported:
        """All that is imported by now; `report` gets what follows, on a thread of its own."""
        self._look()
        with self._lock:
            self._report = report
            self._hashes.save()
        return self.everything()

    def everything(self) -> Imported:
        with self._lock:
            return Imported(dict(self._all.modules), dict(self._all.paths))

    def versions(self) -> dict[str, str]:
        """Of Python and of the installed packages that were imported, as far as their names tell."""
        with self._lock:
            tops = {name.partition(".")[0].lower() for name in self._all.modules}
        found = installed_versions([*library_directories(), *(p for p in sys.path if is_library(p))])
        return {"python": sys.version.split()[0], **{name: found[name] for name in sorted(tops & found.keys())}}

    def _run(self) -> None:
        while True:
            self._changed.wait()
            # Also so that the file is read after the import has read it, and not at the same time.
            threading.Event().wait(_SETTLE_S)
            self._changed.clear()
            self._look()

    def _look(self) -> None:
        new = Imported()
        with self._lock:
            # Some ask at every step for a module that is not installed (accelerate does), so this must cost nothing
            # where nothing came: the newest entry is the last one.
            newest = (len(sys.modules), next(reversed(sys.modules), ""))
            if newest == self._newest:
                return
            self._newest = newest
            for name, module in list(sys.modules.items()):
                if name in self._known:
                    continue
                self._known.add(name)
                if path := _file_of(name, module, self._tree.manifest.script):
                    self._hash(name, path, new)
            self._all.modules |= new.modules
            self._all.paths |= new.paths
            report = self._report
        if new.modules and report is not None:
            report(new)

    def _hash(self, name: str, path: str, into: Imported) -> None:
        kept = self._tree.kept(path)
        try:
            digest = kept.sha256 if kept is not None else self._hashes.sha256(path)
        except OSError:
            return
        into.modules[name] = digest[:_DIGITS]
        if kept is not None or not is_library(path):
            into.paths[name] = path.encode("utf-8", "backslashreplace").decode()


def _file_of(name: str, module: object, script: str) -> str:
    """The file that a module came from, "" if it is of no interest."""
    attributes = getattr(module, "__dict__", {})
    spec = attributes.get("__spec__")
    if name == "__main__" and spec is None:
        return script
    if not isinstance(spec, ModuleSpec) or not spec.has_location or not spec.origin or name.startswith("__editable__"):
        return ""
    return "" if not os.path.isabs(spec.origin) or is_standard(spec.origin) else spec.origin
