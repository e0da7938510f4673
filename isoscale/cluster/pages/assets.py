"""Styles and scripts, read once: a request names an entry of a table, never a path.

All of them share one version, the digest of their contents, which is part of their address: a browser may keep them for
ever, and a service that was updated serves none of the old ones by mistake.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

__all__ = ["Asset", "Assets", "load_assets"]

_MEDIA = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml; charset=utf-8",
    "LICENSE": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    media: str
    body: bytes
    gzipped: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Assets:
    version: str
    files: dict[str, Asset]

    @property
    def scripts(self) -> tuple[str, ...]:
        """Our own modules; the chart library and the theme are no modules."""
        return tuple(name for name in self.files if name.endswith(".js") and name not in ("theme.js", _CHARTS))


_CHARTS = "uPlot.iife.min.js"


@functools.cache
def load_assets() -> Assets:
    found = dict(sorted(_read(files(__package__) / "static").items()))
    digest = hashlib.sha256()
    for name, body in found.items():
        digest.update(name.encode() + b"\0" + hashlib.sha256(body).digest())
    return Assets(
        version=digest.hexdigest()[:16],
        files={
            name: Asset(media=_MEDIA[name.rpartition(".")[2]], body=body, gzipped=gzip.compress(body, 6, mtime=0))
            for name, body in found.items()
        },
    )


def _read(folder: Traversable) -> dict[str, bytes]:
    """By name: folders are for us, addresses are flat."""
    found: dict[str, bytes] = {}
    for one in folder.iterdir():
        if one.is_dir():
            found |= _read(one)
        elif one.name.rpartition(".")[2] in _MEDIA:
            found[one.name] = one.read_bytes()
    return found
