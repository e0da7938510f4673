"""Objects under a URL: a directory that machines share, or whatever fsspec reaches. The thinnest possible.

Writing an object is atomic: it is there as a whole, or as it was before. Creating one succeeds for one of all who try
at the same time. Storages that cannot do that are refused: without it two coordinators could have one term. Every error
is an OSError. Only this module imports fsspec, and only for a URL that needs it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from isoscale.errors import UserError
from isoscale.protocol.files import open_regular, sync_directory

__all__ = ["LocalObjects", "Objects", "RemoteObjects", "open_objects"]

#: file systems of fsspec whose `mode="create"` is decided by the storage itself, in one request
_CONDITIONAL = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"})
_INSTALL = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}


class Objects(Protocol):
    """Keys are `storage.names`. Each method raises OSError; FileNotFoundError for an object that is not there."""

    def read(self, key: str, most: int) -> bytes:
        """At most so many bytes, from the beginning."""

    def write(self, key: str, data: bytes) -> None: ...

    def create(self, key: str, data: bytes) -> None:
        """Raises FileExistsError if it is there already, whoever made it."""

    def upload(self, key: str, path: Path) -> None: ...

    def download(self, key: str, path: Path) -> None: ...

    def size(self, key: str) -> int: ...

    def sha256(self, key: str) -> str: ...

    def list(self, prefix: str) -> dict[str, int]:
        """Sizes by key, of all whose key begins with a prefix that ends with a slash."""

    def remove(self, key: str) -> None:
        """Also if it is not there."""


class LocalObjects:
    """A directory that all machines see, such as one of NFS. Names that begin with a dot are being written.

    An upload is large, and listed from the beginning: whoever makes room removes one that was broken off.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, key: str, most: int) -> bytes:
        with open_regular(self._root / key) as file:
            return file.read(most)

    def write(self, key: str, data: bytes) -> None:
        with self._temporary(key) as temporary:
            _write_synced(temporary, data)
            temporary.replace(self._root / key)

    def create(self, key: str, data: bytes) -> None:
        with self._temporary(key) as temporary:
            _write_synced(temporary, data)
            os.link(temporary, self._root / key)  # unlike a rename, it fails if the name is taken

    def upload(self, key: str, path: Path) -> None:
        with self._temporary(key, hidden=False) as temporary:
            shutil.copyfile(path, temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(self._root / key)

    def download(self, key: str, path: Path) -> None:
        with open_regular(self._root / key) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, 2**20)

    def size(self, key: str) -> int:
        return (self._root / key).stat().st_size

    def sha256(self, key: str) -> str:
        with open_regular(self._root / key) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def list(self, prefix: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for directory, _, files in os.walk(self._root / prefix):
            for name in files:
                path = Path(directory) / name
                with contextlib.suppress(FileNotFoundError):
                    if not name.startswith("."):
                        found[path.relative_to(self._root).as_posix()] = path.stat().st_size
        return found

    def remove(self, key: str) -> None:
        (self._root / key).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _temporary(self, key: str, *, hidden: bool = True) -> Iterator[Path]:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{'.' if hidden else ''}{path.name}.{secrets.token_hex(6)}.tmp")
        try:
            yield temporary
            sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


class RemoteObjects:
    """Through fsspec."""

    def __init__(self, files: Any, root: str) -> None:
        self._files = files
        self._root = root.rstrip("/")

    def read(self, key: str, most: int) -> bytes:
        with _as_os_error():
            return bytes(self._files.cat_file(self._path(key), start=0, end=most))

    def write(self, key: str, data: bytes) -> None:
        with _as_os_error():
            self._files.pipe_file(self._path(key), data)

    def create(self, key: str, data: bytes) -> None:
        with _as_os_error():
            self._files.pipe_file(self._path(key), data, mode="create")

    def upload(self, key: str, path: Path) -> None:
        with _as_os_error():
            self._files.put_file(str(path), self._path(key))

    def download(self, key: str, path: Path) -> None:
        with _as_os_error():
            self._files.get_file(self._path(key), str(path))

    def size(self, key: str) -> int:
        with _as_os_error():
            return int(self._files.size(self._path(key)))

    def sha256(self, key: str) -> str:
        total = hashlib.sha256()
        with _as_os_error(), self._files.open(self._path(key), "rb", cache_type="readahead") as file:
            while data := file.read(2**23):
                total.update(data)
        return total.hexdigest()

    def list(self, prefix: str) -> dict[str, int]:
        with _as_os_error():
            self._files.invalidate_cache()
            found = self._files.find(self._path(prefix.rstrip("/")), detail=True)
        start = len(self._files._strip_protocol(self._root)) + 1
        return {name[start:]: int(one["size"]) for name, one in found.items() if one["type"] == "file"}

    def remove(self, key: str) -> None:
        with _as_os_error(), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"


def open_objects(url: str, field: str = "--storage") -> Objects:
    """Raises UserError if it is no URL of a storage, or of one that cannot decide who was first."""
    parts = _split(url, field)
    if parts.scheme in ("", "file", "local"):
        return LocalObjects(_directory(url, field))
    if parts.username or parts.password:
        problem, remedy = "holds a secret, which would be in logs", "give credentials by the storage's own variables"
        raise UserError(field=field, value=f"{parts.scheme}://...", problem=problem, remedy=remedy)
    if parts.scheme not in _CONDITIONAL:
        remedy = "use S3, Google Cloud Storage, Azure Blob Storage, or a directory that all machines share"
        problem = f"needs a shared lock: {parts.scheme} cannot create an object for one of two who try at once"
        raise UserError(field=field, value=url, problem=problem, remedy=remedy)
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError:
        problem, remedy = "needs fsspec, which is not installed", "pip install 'isoscale[storage]'"
        raise UserError(field=field, value=url, problem=problem, remedy=remedy) from None
    given: dict[str, Any] = {} if parts.scheme == "memory" else {"skip_instance_cache": True}
    if parts.scheme in ("s3", "s3a"):
        # One try is one try: `client` makes the next, and three in each other would wait for timeouts by the hour.
        once = {"connect_timeout": 10, "read_timeout": 60, "retries": {"total_max_attempts": 1}}
        given |= {"use_listings_cache": False, "config_kwargs": once}
    try:
        files, root = url_to_fs(url, **given)
    except ImportError:
        package = _INSTALL.get(parts.scheme, parts.scheme)
        problem = f"needs {package}, which is not installed"
        raise UserError(field=field, value=url, problem=problem, remedy=f"pip install {package}") from None
    except Exception as error:
        problem = f"cannot be opened ({_line(error)})"
        raise UserError(field=field, value=url, problem=problem, remedy="see its documentation") from None
    if not root.strip("/"):
        raise UserError(field=field, value=url, problem="names no place", remedy="give, for example, s3://BUCKET/RUN")
    if parts.scheme in ("s3", "s3a"):
        files.retries = 2  # the second for the rest of a download that broke off
    return RemoteObjects(files, root)


def _split(url: str, field: str) -> Any:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise UserError(field=field, value=url, problem=f"no URL ({error})", remedy="give s3://BUCKET/RUN") from None


def _directory(url: str, field: str) -> Path:
    parts = urlsplit(url)
    path = Path(unquote(parts.path) if parts.scheme else url)
    if parts.netloc not in ("", "localhost") or not path.is_absolute():
        problem, remedy = "is no absolute path", "give file:///PATH, or the absolute path"
        raise UserError(field=field, value=url, problem=problem, remedy=remedy)
    return path


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Clients of storages raise errors of their own for networks and credentials."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(_line(error)) from error


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:500]


def _write_synced(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
