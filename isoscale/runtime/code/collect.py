"""Reads the code of a run from its roots into memory: sources and extension modules, within bounds.

Left out are libraries, virtual environments, hidden directories, `__pycache__`, `node_modules`, directories of runs,
what `.isoscaleignore` of a root names, files that cannot be read and such as are too large to keep: whatever of it is
imported is compared by its hash instead (`imports`). A part of a tree in which nothing but data is found for long is
not looked through to its end. Symbolic links are followed, each directory once.
"""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from isoscale import env
from isoscale.errors import UserError
from isoscale.runtime.code.ignore import FILE_NAME, Patterns
from isoscale.runtime.code.libraries import inside, is_library
from isoscale.runtime.code.manifest import Root
from isoscale.runtime.code.reading import read_regular
from isoscale.runtime.code.roots import editable_packages, find_roots, linked_directories

__all__ = ["Bounds", "Snapshot", "code_of_script", "collect"]

_SUFFIXES = (".py", ".so", ".pyd")
_NOT_CODE = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
_NO_FILES = ("/proc", "/sys", "/dev")
#: of the bounds, for a root that is left out if it holds more
_OPTIONAL_SHARE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    files: int = 10_000
    #: of all files
    total_bytes: int = 64 * 2**20
    #: larger files are not kept
    file_bytes: int = 8 * 2**20
    #: names in directories that are looked at, in all
    entries: int = 1_000_000
    #: so many of them in one subdirectory of a root without any code: the rest of it is data, too
    barren_entries: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The code of a run as it was at one instant."""

    script: str
    #: its name, where it was started as a module
    module: str
    cwd: str
    roots: tuple[Root, ...]
    #: by absolute path
    files: dict[str, bytes]
    #: packages by name, of those whose place an import finder knows
    packages: dict[str, str] = field(default_factory=dict)


def code_of_script(script: str, *, module: str = "", out: str = "", bounds: Bounds | None = None) -> Snapshot:
    """What `python SCRIPT`, started by this process, would find. Raises UserError; `out` is the run's directory."""
    cwd, packages = os.getcwd(), editable_packages()
    roots = find_roots(
        script,
        module=bool(module),
        cwd=cwd,
        # The first entry is where this very program lies.
        import_path=sys.path if sys.flags.safe_path else sys.path[1:],
        python_path=env.python_path(),
        links=linked_directories(),
        editable=packages,
    )
    files = collect(script, roots, out=out, bounds=bounds or Bounds())
    return Snapshot(script=script, module=module, cwd=cwd, roots=roots, files=files, packages=packages)


def collect(script: str, roots: Sequence[Root], *, out: str, bounds: Bounds) -> dict[str, bytes]:
    """Contents by absolute path; the script in any case. Raises UserError if there is more than may be kept."""
    walk = _Walk(bounds, [root.path for root in roots if not root.script_only], out)
    try:
        walk.files[script] = read_regular(script, bounds.total_bytes)
    except OSError as error:
        problem = f"cannot be kept with the run ({error.strerror or error})"
        raise UserError(field="SCRIPT", value=script, problem=problem, remedy="give a file that can be read") from None
    for root in roots:
        if root.script_only:
            continue
        before, seen = dict(walk.files), set(walk.seen)
        try:
            walk.limits = _shared(bounds) if root.optional else bounds
            walk.root(root.path)
        except _TooMuchError as error:
            walk.files, walk.seen = before, seen
            if not root.optional:
                raise _refusal(script, root, error) from None
    return walk.files


def _shared(bounds: Bounds) -> Bounds:
    """For a root that is not needed for certain."""
    return replace(
        bounds,
        files=bounds.files // _OPTIONAL_SHARE,
        total_bytes=bounds.total_bytes // _OPTIONAL_SHARE,
        entries=bounds.entries // _OPTIONAL_SHARE,
    )


class _TooMuchError(Exception):
    def __init__(self, what: str, where: str) -> None:
        super().__init__(what)
        self.what, self.where = what, where


class _Walk:
    """Over the roots of one run. Directories and files that were seen are not looked at again."""

    def __init__(self, bounds: Bounds, roots: Sequence[str], out: str) -> None:
        self.limits = bounds
        self.files: dict[str, bytes] = {}
        self._roots = [os.path.realpath(root) for root in roots]
        self._out = os.path.realpath(out) if out else ""
        self.seen: set[tuple[int, int]] = set()

    def root(self, root: str) -> None:
        """Breadth first, so that what lies near is found before what lies deep."""
        patterns = _patterns_in(root)
        total_bytes = sum(map(len, self.files.values()))
        #: by subdirectory of the root: names in it, those since the last file of code, files of code and their bytes
        num_entries: Counter[str] = Counter()
        barren: Counter[str] = Counter()
        num_files: Counter[str] = Counter()
        num_bytes: Counter[str] = Counter()
        is_shared = _is_shared(root)
        queue = [(root, "")]
        for directory, part in queue:
            if part and barren[part] > self.limits.barren_entries:
                continue
            entries, count = self._entries(directory, is_root=directory == root)
            num_entries[part] += count
            barren[part] += count
            if num_entries.total() > self.limits.entries:
                raise _TooMuchError(f"more than {self.limits.entries:,} files", _most(num_entries))
            for entry in entries:
                path = entry.path
                relative = os.path.relpath(path, root).replace(os.sep, "/")
                if _is_directory(entry):
                    if is_shared:
                        continue
                    if not patterns.ignores(relative, is_directory=True) and self._may_enter(entry):
                        queue.append((path, part or entry.name))
                elif path not in self.files and not patterns.ignores(relative):
                    barren[part] = 0
                    size = self._keep(path)
                    num_files[part] += 1
                    num_bytes[part] += size
                    total_bytes += size
                    if len(self.files) > self.limits.files:
                        raise _TooMuchError(f"more than {self.limits.files:,} files of code", _most(num_files))
                    if total_bytes > self.limits.total_bytes:
                        limit = self.limits.total_bytes // 2**20
                        raise _TooMuchError(f"more than {limit} MiB of code", _most(num_bytes))

    def _entries(self, directory: str, *, is_root: bool) -> tuple[list[os.DirEntry[str]], int]:
        """Subdirectories and code of a directory that was not looked at yet, and how many names it has in all."""
        found: list[os.DirEntry[str]] = []
        count = 0
        try:
            status = os.stat(directory)
            if (status.st_dev, status.st_ino) in self.seen:
                return [], 0
            self.seen.add((status.st_dev, status.st_ino))
            with os.scandir(directory) as entries:
                for entry in entries:
                    count += 1
                    if count > self.limits.entries:
                        break
                    if entry.name in ("pyvenv.cfg", "conda-meta") and not is_root:
                        return [], count
                    if entry.name.endswith(_SUFFIXES) or _is_directory(entry):
                        found.append(entry)
        except OSError:
            pass  # gone, or not ours to read
        if not is_root and os.path.exists(os.path.join(directory, "control", "job.json")):
            return [], count  # another run's
        return sorted(found, key=lambda entry: entry.name), count

    def _may_enter(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(".") or entry.name in _NOT_CODE:
            return False
        real = os.path.realpath(entry.path)
        if entry.is_symlink() and any(inside(real, root) for root in self._roots):
            return False  # found by its own name, and by this one too (`Tree`)
        return real not in (self._out, *_NO_FILES) and not is_library(real)

    def _keep(self, path: str) -> int:
        try:
            self.files[path] = read_regular(path, self.limits.file_bytes)
        except OSError:
            return 0  # compared, should it be imported
        return len(self.files[path])


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_shared(root: str) -> bool:
    """Everybody may write there, as in /tmp: what lies in its subdirectories are other people's projects."""
    try:
        mode = os.stat(root).st_mode
    except OSError:
        return False
    return bool(mode & stat.S_ISVTX and mode & stat.S_IWOTH)


def _most(counts: Counter[str]) -> str:
    """The subdirectory that counts most so far; "" if there is none."""
    return next((name for name, _ in counts.most_common() if name), "")


def _patterns_in(root: str) -> Patterns:
    try:
        text = read_regular(os.path.join(root, FILE_NAME), 2**20).decode("utf-8", "replace")
    except OSError:
        return Patterns()
    return Patterns.parse(text)


def _refusal(script: str, root: Root, error: _TooMuchError) -> UserError:
    most = f", most of it in {error.where}" if error.where else ""
    example = f", such as {error.where}/" if error.where else ""
    return UserError(
        field="SCRIPT",
        value=script,
        problem=f"a run keeps its code, and {root.path} ({root.why}) holds {error.what}{most}",
        remedy=f"name what the script does not import in {os.path.join(root.path, FILE_NAME)}{example}, "
        "or put the script into a directory of its own",
    )
