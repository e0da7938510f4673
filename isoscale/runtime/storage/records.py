"""What small objects of a run's storage say: values, and their form as JSON with a check over it. Pure.

An object that is half there, changed, or of another format is `Damaged`, and counts as if it were not there.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import msgspec

from isoscale.runtime.storage import names

__all__ = ["Address", "Base", "Claim", "Damaged", "Entry", "Piece", "Result", "read", "written"]

_FORMAT = 1
Record = TypeVar("Record")


class Damaged(Exception):  # noqa: N818 - a finding: its text is the reason for a warning
    """An object that does not hold what it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who holds a term. The nonce tells the holder from another one who wrote the same at the same time."""

    term: int
    nonce: str
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    url: str
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A checkpoint that counts: its object, what that must be, and the checkpoint's own manifest."""

    step: int
    object: str
    size: int
    sha256: str
    manifest: str

    def __post_init__(self) -> None:
        _check_object(self.object, self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """So many bytes of an object that may have grown since."""

    object: str
    size: int

    def __post_init__(self) -> None:
        _check_object(self.object, self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What a term goes on with, of all that earlier ones have left."""

    term: int
    entries: tuple[Entry, ...] = ()
    events: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The end of a job. There is one for a number of steps, whoever was first."""

    step: int
    digest: str
    stop_reason: str
    object: str
    size: int
    sha256: str
    #: facts that no coordinator may have heard, as messages in base64
    unheard: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_object(self.object, self.size)


def written(record: Any) -> bytes:
    fields = {"format": _FORMAT, "sort": type(record).__name__, **asdict(record)}
    return json.dumps({**fields, "check": _check(fields)}, indent=1).encode() + b"\n"


def read(data: bytes, sort: type[Record]) -> Record:
    """Raises Damaged."""
    try:
        fields: Any = json.loads(data)
        if not isinstance(fields, dict) or fields.pop("check", None) != _check(fields):
            raise Damaged("it is not whole, or was changed")
        if (fields.pop("format", None), fields.pop("sort", None)) != (_FORMAT, sort.__name__):
            raise Damaged(f"it is no {sort.__name__} of format {_FORMAT}")
        return msgspec.convert(fields, sort)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"it is damaged ({error})") from None


def _check(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _check_object(key: str, size: int) -> None:
    if not names.is_name(key) or size < 0:
        raise ValueError(f"object={key!r}, size={size}: no object of a run")
