"""Hashes of files that rarely change: computed once, and again only if the system says that a file was touched.

The files of an installed torch are a thousand; to read them takes a tenth of a second, to ask for their times nothing.
Kept in DIR/code for the executors that come later. A damaged record costs time, no more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from isoscale.runtime.code.reading import read_regular

__all__ = ["Hashes"]

#: no file of code is as long
_LIMIT = 2**34
#: so few new ones are not worth a file
_WORTH = 20


class Hashes:
    def __init__(self, record: Path | None) -> None:
        """`record` is where those of an earlier process are; without one nothing is kept."""
        self._record = record
        #: by path: identity, sizes and times of the file, then its hash
        self._known: dict[str, list[int | str]] = {}
        self._num_new = 0
        if record is not None:
            with contextlib.suppress(OSError, ValueError):
                known = json.loads(record.read_bytes())
                self._known = known if isinstance(known, dict) else {}

    def sha256(self, path: str) -> str:
        """Raises OSError."""
        status = os.stat(path)
        mark = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        known = self._known.get(path)
        if isinstance(known, list) and known[:-1] == mark:
            return str(known[-1])
        digest = hashlib.sha256(read_regular(path, _LIMIT)).hexdigest()
        self._known[path] = [*mark, digest]
        self._num_new += 1
        return digest

    def save(self) -> None:
        """For processes that come later, if there is enough to save."""
        if self._record is None or self._num_new < _WORTH:
            return
        self._num_new = 0
        temporary = self._record.with_name(f".{self._record.name}.{os.getpid()}.tmp")
        with contextlib.suppress(OSError, UnicodeEncodeError):
            temporary.write_text(json.dumps(self._known), encoding="ascii")
            temporary.replace(self._record)
