"""A storage reached by another process: for executors, whose own process must stay as it is.

Clients of storages draw from Python's global random numbers (for the pause before a retry), which are a logical
worker's while its turn runs, and start threads, which forked loaders would miss. So an executor hands each errand to a
courier, a process with no part in training:

    python .../courier.py URL      a request per line on stdin, an answer per line on stdout; ends with its stdin
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    try:
        import isoscale.env
    except ModuleNotFoundError:
        sys.path.append(str(Path(__file__).resolve().parents[3]))
        import isoscale.env  # noqa: F401

from isoscale.errors import UserError
from isoscale.protocol.files import MAX_SMALL_BYTES
from isoscale.runtime.storage.client import DirectStorage, open_storage

__all__ = ["CourierStorage", "main"]

_COURIER = os.path.abspath(__file__)
_ERRORS = {one.__name__: one for one in (FileNotFoundError, FileExistsError, PermissionError)}


class CourierStorage:
    """A `Storage`. The process is started for the first errand; one errand at a time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, key: str, most: int = MAX_SMALL_BYTES) -> bytes:
        return base64.b64decode(self._ask("read", key=key, most=most))

    def write(self, key: str, data: bytes) -> None:
        self._ask("write", key=key, data=base64.b64encode(data).decode())

    def create(self, key: str, data: bytes) -> bool:
        return bool(self._ask("create", key=key, data=base64.b64encode(data).decode()))

    def upload(self, key: str, path: Path) -> None:
        self._ask("upload", key=key, path=str(path.absolute()))

    def download(self, key: str, path: Path, size: int, sha256: str) -> None:
        self._ask("download", key=key, path=str(path.absolute()), size=size, sha256=sha256)

    def size(self, key: str) -> int:
        return int(self._ask("size", key=key))

    def sha256(self, key: str) -> str:
        return str(self._ask("sha256", key=key))

    def list(self, prefix: str) -> dict[str, int]:
        return dict(self._ask("list", prefix=prefix))

    def remove(self, key: str) -> None:
        self._ask("remove", key=key)

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, what: str, **fields: Any) -> Any:
        """One more try with another courier, if this one has died: every errand may be done twice."""
        with self._lock:
            answer = self._exchange({"do": what, **fields}) or self._exchange({"do": what, **fields})
        if answer is None:
            raise OSError(f"no process reaches {self._url}: see the end of the executor's log")
        if "error" in answer:
            raise _ERRORS.get(answer["error"], OSError)(answer["message"])
        return answer["value"]

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any] | None:
        try:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", _COURIER, self._url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            process = self._process
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            if line := process.stdout.readline():
                answer: dict[str, Any] = json.loads(line)
                return answer
        except (OSError, ValueError):
            pass
        self._end()
        return None

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            process.kill()
            process.wait()


def main(url: str) -> None:
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        storage: DirectStorage | None = open_storage(url)
        why = ""
    except UserError as error:
        storage, why = None, str(error)
    for line in sys.stdin.buffer:
        try:
            if storage is None:
                raise OSError(why)
            answer = {"value": _do(storage, json.loads(line))}
        except OSError as error:
            answer = {"error": type(error).__name__, "message": error.strerror or str(error)}
        answers.write(json.dumps(answer).encode() + b"\n")


def _do(storage: DirectStorage, request: dict[str, Any]) -> Any:
    given = {name: value for name, value in request.items() if name != "do"}
    if "data" in given:
        given["data"] = base64.b64decode(given["data"])
    if "path" in given:
        given["path"] = Path(given["path"])
    value = getattr(storage, request["do"])(**given)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main(sys.argv[1])
