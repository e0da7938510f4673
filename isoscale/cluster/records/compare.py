"""Two runs side by side: the first step at which they differ, to the bit. Pure but for reading their logs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from isoscale.protocol.files import open_regular
from isoscale.timelines.fields import items, number, text, whole

__all__ = ["Difference", "LogsCompared", "compare_logs"]

_CHUNK = 2**20
#: of each log; what is behind it is not compared, and the answer says how far it went
_MOST_BYTES = 2**30
_DECODER = msgspec.json.Decoder(list[dict[str, Any]])
_WANTED = (b'"event": "step"', b'"event": "audit"', b'"event": "batch"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    step: int
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsCompared:
    """Of steps that both have."""

    steps_compared: int
    first_difference: Difference | None
    audits_compared: int
    first_audit_difference: Difference | None
    batches_differ: bool
    #: one of the logs is too long to be compared to its end
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    audits: dict[int, str]
    #: step, size, factor
    batches: dict[int, tuple[Any, ...]]
    truncated: bool


def compare_logs(a: Path, b: Path) -> LogsCompared:
    """Of directories. Losses are equal if they are the same float64, or both no number."""
    one, other = _told(a), _told(b)
    common, left, right = np.intersect1d(one.steps, other.steps, assume_unique=True, return_indices=True)
    x, y = one.losses[left], other.losses[right]
    differ = np.flatnonzero(~((x == y) | (np.isnan(x) & np.isnan(y))))
    first = None
    if len(differ):
        at = int(differ[0])
        first = Difference(step=int(common[at]), a=repr(float(x[at])), b=repr(float(y[at])))
    audits = sorted(one.audits.keys() & other.audits.keys())
    wrong = next((step for step in audits if one.audits[step] != other.audits[step]), None)
    return LogsCompared(
        steps_compared=len(common),
        first_difference=first,
        audits_compared=len(audits),
        first_audit_difference=(
            None if wrong is None else Difference(step=wrong, a=one.audits[wrong], b=other.audits[wrong])
        ),
        batches_differ=one.batches != other.batches,
        truncated=one.truncated or other.truncated,
    )


def _told(directory: Path) -> _Told:
    """Of a step that was done again, what was told last."""
    steps: list[NDArray[np.int64]] = []
    losses: list[NDArray[np.float64]] = []
    audits: dict[int, str] = {}
    batches: dict[int, tuple[Any, ...]] = {}
    read = 0
    with contextlib.suppress(OSError), open_regular(directory / "events.jsonl") as file:
        rest = b""
        while read < _MOST_BYTES and (data := file.read(_CHUNK)):
            read += len(data)
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            found = _decoded([line for line in lines if any(mark in line for mark in _WANTED)])
            numbers, values = [], []
            for event in found:
                step, kind = whole(event, "step"), event.get("event")
                if step is None or step >= 2**53:
                    continue
                if kind == "step":
                    loss = number(event, "loss")
                    numbers.append(step)
                    values.append(np.nan if loss is None else loss)
                elif kind == "audit":
                    audits[step] = text(event, "digest")
                elif kind == "batch":
                    batches[step] = (
                        text(event, "to"),
                        text(event, "factor"),
                        tuple(map(str, items(event, "learning_rates"))),
                    )
            steps.append(np.array(numbers, dtype=np.int64))
            losses.append(np.array(values, dtype=np.float64))
    every = np.concatenate(steps) if steps else np.empty(0, dtype=np.int64)
    values_ = np.concatenate(losses) if losses else np.empty(0)
    unique, index = np.unique(every[::-1], return_index=True)
    return _Told(
        steps=unique,
        losses=values_[::-1][index],
        audits=audits,
        batches=batches,
        truncated=read >= _MOST_BYTES,
    )


def _decoded(lines: list[bytes]) -> list[dict[str, Any]]:
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        return _DECODER.decode(b"[" + b",".join(lines) + b"]")
    found = []
    for line in lines:  # a torn one: each by itself
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            event = msgspec.json.decode(line)
            if isinstance(event, dict):
                found.append(event)
    return found
