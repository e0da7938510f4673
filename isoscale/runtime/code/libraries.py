"""Which files are libraries: the standard library, installed packages and isoscale itself.

Libraries are not kept with a run but compared, by the hash of each file that was imported.
"""

from __future__ import annotations

import functools
import os
import re
import site
import sysconfig
from collections.abc import Iterable

__all__ = ["OWN_PACKAGE", "inside", "installed_versions", "is_library", "is_standard", "library_directories"]

#: isoscale, wherever it is installed
OWN_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_DISTRIBUTION = re.compile(r"(.+)-([^-]+)\.(?:dist|egg)-info")


def inside(path: str, directory: str) -> bool:
    """Whether an absolute path is the directory or lies in it.

    >>> inside("/a/b", "/a"), inside("/ab", "/a"), inside("/a", "/a"), inside("/a", "/")
    (True, False, True, True)
    """
    return path == directory or path.startswith(os.path.join(directory, ""))


def is_standard(path: str) -> bool:
    """Part of Python itself, whose version is compared instead."""
    return any(inside(path, one) for one in _standard_directories()) and not _is_installed(path)


def is_library(path: str) -> bool:
    return (
        _is_installed(path)
        or inside(path, OWN_PACKAGE)
        or any(inside(path, one) for one in (*_standard_directories(), *library_directories()))
    )


@functools.cache
def library_directories() -> tuple[str, ...]:
    """Where packages are installed for this interpreter."""
    found = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    return _both_ways(found)


def installed_versions(directories: Iterable[str]) -> dict[str, str]:
    """Version by distribution, as the names of their metadata say; lower case, with underscores."""
    versions: dict[str, str] = {}
    for directory in directories:
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            if match := _DISTRIBUTION.fullmatch(name):
                versions.setdefault(match[1].lower().replace("-", "_"), match[2])
    return versions


@functools.cache
def _standard_directories() -> tuple[str, ...]:
    return _both_ways([sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")])


def _is_installed(path: str) -> bool:
    return not _INSTALLED.isdisjoint(path.split(os.sep))


def _both_ways(paths: Iterable[str]) -> tuple[str, ...]:
    """As they are written, and without symbolic links."""
    absolute = [os.path.abspath(path) for path in paths]
    return tuple(dict.fromkeys([*absolute, *map(os.path.realpath, absolute)]))
