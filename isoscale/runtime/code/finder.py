"""Finds modules in kept code: one directory of the import path at a time, as Python's own finder does in a file system.

What was kept goes before what lies there now. A module that was not kept, because it was generated since or is ignored,
is found where it lies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any

from isoscale.runtime.code.tree import Tree

__all__ = ["KeptFinder", "PackageFinder", "path_hook"]

_Loader = type[SourceFileLoader] | type[ExtensionFileLoader]
#: in the order in which Python looks for them
_KINDS: list[tuple[str, _Loader]] = [
    *((suffix, ExtensionFileLoader) for suffix in EXTENSION_SUFFIXES),
    *((suffix, SourceFileLoader) for suffix in SOURCE_SUFFIXES),
]


def path_hook(tree: Tree) -> Callable[[str], KeptFinder]:
    """For `sys.path_hooks`: takes care of directories in which something was kept."""

    def hook(entry: str) -> KeptFinder:
        directory = tree.directory_of(entry)
        if directory is None:
            raise ImportError(f"nothing was kept in {entry}", path=entry)
        return KeptFinder(tree, entry, directory)

    return hook


class KeptFinder:
    """Of one entry of an import path. Modules get the path that they would have from a file system."""

    def __init__(self, tree: Tree, entry: str, directory: str) -> None:
        self._tree = tree
        self._directory = directory
        self.path = os.path.abspath(entry) if not os.path.isabs(entry) else entry
        self._live = FileFinder(
            self.path,
            (ExtensionFileLoader, EXTENSION_SUFFIXES),
            (SourceFileLoader, SOURCE_SUFFIXES),
            (SourcelessFileLoader, BYTECODE_SUFFIXES),
        )

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        name = fullname.rpartition(".")[2]
        is_directory = name in self._tree.subdirectories_of(self._directory)
        kept = self._kept(fullname, name, is_directory)
        if kept is not None:
            return kept
        live = self._live.find_spec(fullname, target)
        if live is not None and live.loader is not None:
            return live
        if is_directory:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [os.path.join(self.path, name)]
            return spec
        return live

    def _kept(self, fullname: str, name: str, is_directory: bool) -> ModuleSpec | None:
        tree, directory = self._tree, self._directory
        if is_directory:
            inner = tree.names_in(os.path.join(directory, name))
            for suffix, loader in _KINDS:
                if f"__init__{suffix}" in inner:
                    package = os.path.join(self.path, name)
                    return _spec(fullname, loader, os.path.join(package, f"__init__{suffix}"), [package])
        names = tree.names_in(directory)
        for suffix, loader in _KINDS:
            if f"{name}{suffix}" in names:
                return _spec(fullname, loader, os.path.join(self.path, f"{name}{suffix}"), None)
        return None

    def invalidate_caches(self) -> None:
        self._live.invalidate_caches()

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """For `pkgutil`: modules of this directory, kept or not, and whether each is a package."""
        found: dict[str, bool] = {}
        for name in self._tree.subdirectories_of(self._directory):
            if any(f"__init__{s}" in self._tree.names_in(os.path.join(self._directory, name)) for s, _ in _KINDS):
                found[name] = True
        for name in self._tree.names_in(self._directory):
            stem = next((name.removesuffix(s) for s, _ in _KINDS if name.endswith(s)), "")
            if stem and stem != "__init__" and "." not in stem:
                found.setdefault(stem, False)
        import pkgutil

        for module in pkgutil.iter_importer_modules(self._live):  # type: ignore[attr-defined]
            found.setdefault(*module)
        for name in sorted(found):
            yield prefix + name, found[name]


class PackageFinder:
    """For `sys.meta_path`: kept packages whose place was known to a finder of an editable install only."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        place = self._tree.manifest.packages.get(fullname) if path is None else None
        if place is None:
            return None
        directory = self._tree.directory_of(os.path.dirname(place))
        if directory is None and (inner := self._tree.directory_of(place)) is not None:
            for suffix, loader in _KINDS:
                if f"__init__{suffix}" in self._tree.names_in(inner):
                    return _spec(fullname, loader, os.path.join(place, f"__init__{suffix}"), [place])
        return (
            None if directory is None else KeptFinder(self._tree, os.path.dirname(place), directory).find_spec(fullname)
        )


def _spec(fullname: str, loader: _Loader, path: str, locations: list[str] | None) -> ModuleSpec | None:
    return spec_from_file_location(fullname, path, loader=loader(fullname, path), submodule_search_locations=locations)
