"""Serves kept code in a process: whoever imports, runs, prints or pickles a module gets it as the job began with it.

Modules keep the `__file__`, `__spec__` and kind of loader that they have in any Python process. Python's own loaders
are made to read kept files where a kept one is meant, so it does not matter which finder has found a module. Nothing is
written beside the user's files. Processes that `multiprocessing` starts afresh get the same code; a process that the
script starts by itself runs what lies on the disk.
"""

from __future__ import annotations

import _imp
import _io
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import io
import linecache
import marshal
import multiprocessing.spawn
import os
import sys
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from isoscale.runtime.code.finder import PackageFinder, path_hook
from isoscale.runtime.code.manifest import Manifest
from isoscale.runtime.code.tree import Tree

__all__ = ["code_of_file", "install", "installed"]

_tree: Tree | None = None


def installed() -> Tree | None:
    """What this process serves, if it does."""
    return _tree


def install(tree: Tree) -> None:
    """From now on, and for good."""
    global _tree
    _tree = tree
    sys.path_hooks.insert(0, path_hook(tree))
    sys.path_importer_cache.clear()
    finder = importlib.machinery.PathFinder
    sys.meta_path.insert(sys.meta_path.index(finder) + 1 if finder in sys.meta_path else 0, PackageFinder(tree))
    _replace(SourceFileLoader, "get_code", lambda original: _get_code(tree, original))
    _replace(ExtensionFileLoader, "create_module", lambda original: _create_module(tree, original))
    opening = _open_code(tree, io.open_code)
    for module in (io, _io):
        setattr(module, "open_code", opening)  # noqa: B010 - the attribute is typed as a function of its own
    _replace(multiprocessing.spawn, "get_preparation_data", lambda original: _preparation(tree, original))


def code_of_file(tree: Tree, found: str, path: str) -> CodeType:
    """The code object of a kept source, as `python PATH` compiles it."""
    data = tree.read(found)
    _show_lines(path, data)
    code = compile(data, path, "exec", dont_inherit=True)
    assert isinstance(code, CodeType)
    return code


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


# ---- sources ----


def _get_code(tree: Tree, original: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    plain = SourceFileLoader.source_to_code

    def get_code(self: Any, fullname: str) -> Any:
        path = self.get_filename(fullname)
        found = tree.find(path)
        if found is None:
            return original(self, fullname)
        data = tree.read(found)
        _show_lines(path, data)
        if type(self).source_to_code is not plain:
            return self.source_to_code(data, path)  # somebody's import hook that changes what it compiles
        return _compiled(tree, tree.manifest.files[found].sha256, path, lambda: self.source_to_code(data, path))

    return get_code


def _compiled(tree: Tree, sha256: str, path: str, make: Callable[[], Any]) -> Any:
    """From the run's own store of bytecode, else compiled and put there for the next process."""
    if tree.directory is None:
        return make()
    text = f"{sys.implementation.cache_tag}-{sys.flags.optimize}-{path}-{sha256}"
    key = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    store = tree.directory / "bytecode" / key
    with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
        data = store.read_bytes()
        if hashlib.sha256(data[32:]).digest() == data[:32]:
            return marshal.loads(data[32:])
    code = make()
    with contextlib.suppress(OSError):
        payload = marshal.dumps(code)
        store.parent.mkdir(exist_ok=True)
        temporary = store.with_name(f".{key}.{os.getpid()}.tmp")
        temporary.write_bytes(hashlib.sha256(payload).digest() + payload)
        temporary.replace(store)
    return code


def _show_lines(path: str, data: bytes) -> None:
    """Tracebacks, debuggers and `inspect` show the lines that run. Without a time, so that nobody compares it."""
    with contextlib.suppress(SyntaxError, UnicodeDecodeError, LookupError):
        lines = importlib.util.decode_source(data).splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        linecache.cache[path] = (len(data), None, lines, path)


def _open_code(tree: Tree, original: Callable[[str], Any]) -> Callable[[str], Any]:
    """Python's own way to open a file in order to run it: used by loaders, and by `runpy` for the main module."""

    def open_code(path: str) -> Any:
        found = tree.find(path) if isinstance(path, str) and path.endswith(".py") else None
        if found is None:
            return original(path)
        data = tree.read(found)
        _show_lines(path, data)
        return io.BytesIO(data)

    return open_code


# ---- extension modules ----


def _create_module(
    tree: Tree, original: Callable[[Any, ModuleSpec], ModuleType]
) -> Callable[[Any, ModuleSpec], ModuleType]:
    def create_module(self: Any, spec: ModuleSpec) -> ModuleType:
        found = tree.find(spec.origin) if spec.origin else None
        if found is None or tree.is_live(found):
            return original(self, spec)
        # The system's loader opens a file; the module is told its own path afterwards, by its spec.
        return _imp.create_dynamic(ModuleSpec(spec.name, spec.loader, origin=_unpacked(tree, found)))

    return create_module


def _unpacked(tree: Tree, found: str) -> str:
    data = tree.read(found)
    assert tree.directory is not None
    place = tree.directory / "extensions" / f"{tree.manifest.files[found].sha256}.so"
    if not place.exists() or place.read_bytes() != data:
        place.parent.mkdir(exist_ok=True)
        temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
        temporary.write_bytes(data)
        temporary.replace(place)
    return str(place)


# ---- processes of multiprocessing ----


class _Installer:
    """Installs the hook where it is unpickled: before the child loads a class of the user's, or the main module."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def __reduce__(self) -> tuple[Any, ...]:
        if self._tree.path is not None:
            return _install_path, (str(self._tree.path),)
        return _install_text, (self._tree.manifest.to_json(),)


def _install_path(path: str) -> None:
    if _tree is None:
        install(Tree.load(Path(path)))


def _install_text(text: str) -> None:
    if _tree is None:
        install(Tree(Manifest.from_json(text), None))


def _preparation(tree: Tree, original: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    def get_preparation_data(name: str) -> dict[str, Any]:
        return {"isoscale_code": _Installer(tree), **original(name)}

    return get_preparation_data
