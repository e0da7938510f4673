"""Rules of the user's own about failures, from a TOML file, tried before ours; and logs of attempts classified by them.

[[class]]
name = "licence server"          # a new class, or one of ours to extend
origin = "infrastructure"        # infrastructure, framework or user
retries = 3
signatures = ["licen[cs]e server .* not reachable"]
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from isoscale import limits
from isoscale.analysis.failures import CLASSES, FailureClass, Origin, classify
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.trace import Labels, Trace
from isoscale.errors import UserError
from isoscale.protocol.files import open_regular, read_small

__all__ = ["read_rules", "with_logs"]

_FIELDS = {"name", "origin", "retries", "signatures"}
_TAIL_BYTES = 200_000


def read_rules(path: Path) -> tuple[FailureClass, ...]:
    """The user's classes, then ours; a class of ours that is named again has their signatures too. Raises UserError."""
    try:
        document = tomllib.loads(read_small(path).decode())
    except (OSError, ValueError) as error:
        raise _bad(path, "", f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    entries = document.get("class")
    if not isinstance(entries, list) or not entries or set(document) != {"class"}:
        raise _bad(path, "", "holds no [[class]], or something else")
    ours = {one.name: one for one in CLASSES}
    mine = [_class(path, number, entry, ours) for number, entry in enumerate(entries, 1)]
    names = {one.name for one in mine}
    if len(names) < len(mine):
        raise _bad(path, "name", "two classes have the same name")
    return (*mine, *(one for one in CLASSES if one.name not in names))


def with_logs(trace: Trace, directory: Path, classes: Sequence[FailureClass], reading: Reading) -> Trace:
    """The trace with the class of every failed attempt whose log is there.

    Of job J and its attempt K (from 0) that is the first of `J.K.*`, `J/K.*`, `J.*`, `J`; the latter two are the last
    attempt's.
    """
    if not directory.is_dir():
        raise UserError(
            field="--logs", value=directory, problem="no such directory", remedy="give one with logs of jobs"
        )
    attempts = trace.attempts
    words = dict.fromkeys(attempts.error.words, 0)
    codes = {word: code for code, word in enumerate(words)}
    found = attempts.error.codes.copy()
    tries = np.bincount(attempts.job, minlength=len(trace.jobs))
    index = _files(directory)
    failed = np.flatnonzero(attempts.failed).tolist()
    for done, row in enumerate(failed):
        job, number = int(attempts.job[row]), int(attempts.number[row])
        name = trace.jobs.names[job]
        path = index.get(f"{name}.{number}") or index.get(f"{name}/{number}")
        if path is None and number == tries[job] - 1:
            path = index.get(name)
        if path is not None:
            error = classify(_tail(path), classes).name
            found[row] = codes.setdefault(error, len(codes))
            reading.read(directory)
        if done % 100 == 0:
            reading.progress(directory, done, len(failed))
    return dataclasses.replace(
        trace, attempts=dataclasses.replace(attempts, error=Labels(codes=found, words=tuple(codes)))
    )


def _files(directory: Path) -> dict[str, Path]:
    """By name without its ending, and by `directory/name` one level below."""
    found: dict[str, Path] = {}
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            found |= {f"{path.name}/{_stem(child)}": child for child in sorted(path.iterdir()) if child.is_file()}
        elif path.is_file():
            found.setdefault(_stem(path), path)
    return found


def _stem(path: Path) -> str:
    return path.stem if path.suffix in (".log", ".err", ".txt", ".stderr", ".out") else path.name


def _tail(path: Path) -> str:
    try:
        with open_regular(path) as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _class(path: Path, number: int, entry: Any, ours: dict[str, FailureClass]) -> FailureClass:
    where = f"[[class]] {number}"
    if not isinstance(entry, dict) or not set(entry) <= _FIELDS:
        extra = ", ".join(sorted(set(entry) - _FIELDS)) if isinstance(entry, dict) else ""
        raise _bad(path, where, f"has the unknown field {extra}" if extra else "is not a table")
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        raise _bad(path, f"{where} name", "is missing")
    base = ours.get(name)
    origin = entry.get("origin", base.origin if base else None)
    if origin not in get_args(Origin):
        raise _bad(path, f"{where} origin", f"is not one of {', '.join(get_args(Origin))}")
    retries = entry.get("retries", base.retries if base else 0)
    if isinstance(retries, bool) or not isinstance(retries, int) or retries not in limits.RETRIES:
        raise _bad(path, f"{where} retries", f"is not a whole number of {limits.RETRIES}")
    signatures = entry.get("signatures", [])
    if not isinstance(signatures, list) or not all(isinstance(one, str) for one in signatures):
        raise _bad(path, f"{where} signatures", "is not a list of texts")
    if not signatures and base is None:
        raise _bad(path, f"{where} signatures", "is missing")
    for signature in signatures:
        try:
            re.compile(signature)
        except re.error as error:
            raise _bad(path, f"{where} signatures", f"{signature!r} is no regular expression ({error})") from None
    return FailureClass(
        name=name,
        origin=cast("Origin", origin),
        retries=retries,
        signatures=(*signatures, *(base.signatures if base else ())),
    )


def _bad(path: Path, where: str, problem: str) -> UserError:
    return UserError(
        field=" ".join(filter(None, ["--rules", where])),
        value=path,
        problem=problem,
        remedy="give [[class]] with name, origin, retries and signatures",
    )
