"""Numbers that a script carries from one step, or epoch, to the next in variables of its own: counters, sums, meters.

Whoever joins or resumes in mid-run has run the script from the top and does not have them. Looked at are variables that
will be read before they are written (`core.liveness`), in all functions of the user's between a loader and the training
function: numbers, tensors, and numbers in dicts, lists and objects of the user's own classes. What nobody can tell from
state by its value (readings of a clock) is left to the caller.
"""

from __future__ import annotations

import argparse
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from types import CodeType, FrameType
from typing import Any

import torch

from isoscale.core.liveness import is_unpacked, live_names, store_line
from isoscale.core.rules import is_ours, is_users, location_of

__all__ = ["Numbers", "counts_by_itself", "script_frames", "script_numbers"]

#: how far into a container or an object, and how many entries of it
_DEPTH, _ENTRIES = 3, 64
_RECORDS = (argparse.Namespace, types.SimpleNamespace)
_NOT_LOOKED_INTO = (torch.nn.Module, torch.optim.Optimizer, torch.utils.data.Dataset, type)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the script carries at one place of it."""

    #: the functions and the instructions they are at: values of another place are not to be compared with these
    place: tuple[tuple[CodeType, int], ...]
    #: by function and path ("train:count", "run:self.seen"); of a tensor, which object it is and how often it changed
    values: dict[str, Any]
    #: "file:line" at which each variable is written next
    locations: dict[str, str]
    #: keys that have no value here: what they are at another moment or in another process cannot be told
    unknown: frozenset[str] = frozenset()

    def changed(self, before: Numbers) -> str | None:
        """The first that has another value than it had before at the same place."""
        if self.place != before.place:
            return None
        return next((key for key, value in self.values.items() if _differ(value, before.values.get(key, value))), None)

    def plain(self) -> dict[str, int | float | None]:
        """Those that another process can be asked about, and None for what is unknown."""
        found = {key: _plain(value) for key, value in self.values.items()}
        return {**{key: value for key, value in found.items() if value is not None}, **dict.fromkeys(self.unknown)}

    def differing(self, others: Mapping[str, int | float | None]) -> str | None:
        """The first that another process has otherwise, or that one of both does not have.

        What is unknown to one of both is not compared. A container of which one has more is taken for a record of
        metrics, not for state.
        """
        mine = self.plain()
        return next((key for key in [*others, *mine] if _is_other(key, mine, others)), None)


def script_frames(frame: FrameType | None, outermost: CodeType | None) -> list[FrameType]:
    """The user's own, from the innermost out to the one that runs `outermost`; none if that is not running."""
    chain: list[FrameType] = []
    while frame is not None:
        if frame.f_code is outermost:
            return [*chain, frame]
        if is_ours(frame.f_code.co_filename):
            chain.clear()  # what was called by a loader is not what iterates it
        elif is_users(frame.f_code.co_filename):
            chain.append(frame)
        frame = frame.f_back
    return []


def counts_by_itself(frame: FrameType) -> bool:
    """Is this the head of a loop over something that pairs what the loader gives: enumerate, zip?"""
    return is_unpacked(frame.f_code, frame.f_lasti)


def script_numbers(
    frames: list[FrameType], kept: Collection[Any], is_kept: Callable[[torch.Tensor], bool] = lambda tensor: False
) -> Numbers:
    """`kept` are objects that the job keeps; `is_kept` tells of a tensor."""
    values: dict[str, Any] = {}
    locations: dict[str, str] = {}
    ids = {id(part) for thing in kept for part in _with_containers(thing)}
    for frame in frames:
        code = frame.f_code
        live = live_names(code, frame.f_lasti)
        for name, value in frame.f_locals.items():
            if name not in live:
                continue
            line = store_line(code, name, frame.f_lasti) or frame.f_lineno
            for path, number in _numbers(name, value, ids, is_kept):
                values[f"{code.co_name}:{path}"] = number
                direct = path == name
                locations[f"{code.co_name}:{path}"] = location_of(code, line if direct else frame.f_lineno)
    for path, number in _globals(frames, ids):
        values.setdefault(f"global:{path}", number)
        locations.setdefault(f"global:{path}", location_of(frames[-1].f_code, frames[-1].f_lineno))
    place = tuple((frame.f_code, frame.f_lasti) for frame in frames)
    return Numbers(place, values, locations)


def _globals(frames: list[FrameType], kept: Collection[int]) -> Iterator[tuple[str, Any]]:
    """Of the modules that the functions are in: numbers, and what the functions name."""
    for namespace in {id(frame.f_globals): frame.f_globals for frame in frames}.values():
        named = {name for frame in frames if frame.f_globals is namespace for name in frame.f_code.co_names}
        for name, value in list(namespace.items()):
            if isinstance(value, Number) or (name in named and not isinstance(value, torch.Tensor)):
                yield from _numbers(name, value, kept, lambda tensor: True)


def _numbers(
    path: str, value: Any, kept: Collection[int], is_kept: Callable[[torch.Tensor], bool], depth: int = 0
) -> Iterator[tuple[str, Any]]:
    if id(value) in kept or path.startswith("__"):
        return
    if isinstance(value, Number):
        yield path, value
    elif isinstance(value, torch.Tensor):
        if not is_kept(value):
            yield path, (id(value), value._version)
    elif depth < _DEPTH:
        for name, part in _parts(value):
            yield from _numbers(f"{path}{name}", part, kept, is_kept, depth + 1)


def _with_containers(thing: Any) -> Iterator[Any]:
    """A kept object, and containers in it that a script may hold as well, such as an optimizer's groups."""
    yield thing
    for value in vars(thing).values() if hasattr(thing, "__dict__") else ():
        if isinstance(value, dict | list):
            yield value
            yield from (one for one in (value if isinstance(value, list) else value.values()) if isinstance(one, dict))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Entries of a container, attributes of an object of the user's own; tensors in them are `core.unkept`'s."""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        parts = [(f"[{key!r}]", part) for key, part in list(value.items())[:_ENTRIES]]
    elif isinstance(value, list | tuple):
        parts = [(f"[{i}]", part) for i, part in enumerate(value[:_ENTRIES])]
    elif _is_users_object(value):
        parts = [(f".{name}", part) for name, part in list(vars(value).items())[:_ENTRIES]]
    return ((name, part) for name, part in parts if not isinstance(part, torch.Tensor))


def _is_users_object(value: Any) -> bool:
    if isinstance(value, _RECORDS):
        return True
    if isinstance(value, _NOT_LOOKED_INTO) or not hasattr(value, "__dict__"):
        return False
    kind = type(value)
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return kind.__module__ == "__main__" or (file is not None and is_users(file))


def _is_other(key: str, mine: Mapping[str, int | float | None], others: Mapping[str, int | float | None]) -> bool:
    if any(key in one and one[key] is None for one in (mine, others)):
        return False
    if "[" in key and (key not in mine or key not in others):
        return False
    return _differ(mine.get(key), others.get(key))


def _differ(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is not b
    return bool(a != b) and not (a != a and b != b)


def _plain(value: Any) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, Number):
        return None
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, int):
        return number if number.bit_length() < 63 else None
    return number if isinstance(number, float) else None
