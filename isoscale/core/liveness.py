"""Which variables of a function that is running will it read again before it writes them?

A variable that a loop reads before it writes carries something from one pass of the loop to the next; one that it
writes first does not. Read from bytecode, whose names of instructions differ between versions of Python only in ways
that are looked through here (fused loads and stores). Exceptions are not followed, and a `for` loop is taken to have a
first pass: what it writes is not asked for from before it.
"""

from __future__ import annotations

import dis
import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

__all__ = ["is_unpacked", "live_names", "store_line"]

#: not what sets an outer variable aside for one of the same name in a comprehension
_ACCESS = re.compile(r"(LOAD|STORE|DELETE)_(?:FAST(?!_AND_CLEAR)|DEREF|CLOSURE)")
_NO_SUCCESSOR = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


def live_names(code: CodeType, last: int) -> frozenset[str]:
    """Names that are read before they are written after the instruction at `last`, a frame's `f_lasti`.

    At the head of a `for` loop: if it goes on, not if it ends. What inner functions write is taken to be read, and what
    is an outer function's.

    >>> def count(items):
    ...     i, last = 0, 0
    ...     for item in items:
    ...         i += 1
    ...         last = i * item
    ...     return last
    >>> head = next(at.offset for at in dis.get_instructions(count) if at.opname == "FOR_ITER")
    >>> sorted(live_names(count.__code__, head) - {"items"})
    ['i']
    """
    body = _body(code)
    at = _index(body, last)
    shared = frozenset(code.co_freevars) | _written_inside(code)
    return shared | (_live(code)[at + 1] if at + 1 < len(body) else frozenset())


def store_line(code: CodeType, name: str, last: int) -> int:
    """The line that writes a variable next after `last`, or else last before it; 0 if none does."""
    stores = [
        (at.offset, line) for at, line in _lines(code) for kind, one in _accesses(at) if (kind, one) == ("S", name)
    ]
    later = [line for offset, line in stores if offset > last]
    return (later or [line for _, line in stores[-1:]] or [0])[0]


def is_unpacked(code: CodeType, last: int) -> bool:
    """Is `last` the head of a `for` loop over tuples: `for i, item in ...`?"""
    body = _body(code)
    at = _index(body, last)
    if body[at].opname != "FOR_ITER" or at + 1 >= len(body):
        return False
    return body[at + 1].opname.startswith("UNPACK_")


@lru_cache(maxsize=256)
def _written_inside(code: CodeType) -> frozenset[str]:
    """Variables that functions within this one write (`nonlocal`)."""
    names: set[str] = set()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            stored = {name for at in _body(inner) for kind, name in _accesses(at) if kind == "S"}
            names |= (stored | _written_inside(inner)) & {*inner.co_freevars}
    return frozenset(names)


@lru_cache(maxsize=256)
def _body(code: CodeType) -> list[dis.Instruction]:
    return [at for at in dis.get_instructions(code) if at.opname != "CACHE"]


def _index(body: list[dis.Instruction], last: int) -> int:
    return max(0, bisect_right([at.offset for at in body], last) - 1)


@lru_cache(maxsize=256)
def _live(code: CodeType) -> list[frozenset[str]]:
    """What is live before each instruction: the usual equations, solved by going over them until nothing changes."""
    body = _body(code)
    # The head of a loop is there twice: before the first pass, and, at its place plus `size`, before any other.
    size = len(body)
    places = {at.offset: i for i, at in enumerate(body)}
    successors = [list(_successors(body, i, places)) for i in range(size)] * 2
    for i, at in enumerate(body):
        if at.opname == "FOR_ITER":
            successors[i], successors[i + size] = [i + 1], [i + 1, places[at.argval]]
    accesses = [_accesses(at) for at in body]
    live: list[frozenset[str]] = [frozenset()] * (2 * size)
    changed = True
    while changed:
        changed = False
        for i in reversed(range(2 * size)):
            names = set().union(*(live[j] for j in successors[i]))
            for kind, name in reversed(accesses[i % size]):
                (names.add if kind == "L" else names.discard)(name)
            if names != live[i]:
                live[i], changed = frozenset(names), True
    return live[:size]


def _successors(body: list[dis.Instruction], i: int, places: dict[int, int]) -> Iterator[int]:
    at = body[i]
    if at.opcode in _JUMPS and at.argval in places:
        target = places[at.argval]
        yield target + (len(body) if target < i and body[target].opname == "FOR_ITER" else 0)
    always = at.opname.startswith(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")) and "_IF_" not in at.opname
    if at.opname not in _NO_SUCCESSOR and not always and i + 1 < len(body):
        yield i + 1


def _accesses(at: dis.Instruction) -> list[tuple[str, str]]:
    """Loads ("L"), stores and deletions ("S") of local variables, in the order in which the instruction does them."""
    kinds = [kind[0] for kind in _ACCESS.findall(at.opname)]
    names = at.argval if isinstance(at.argval, tuple) else (at.argval,)
    return [("L" if kind == "L" else "S", name) for kind, name in zip(kinds, names, strict=False)]


def _lines(code: CodeType) -> Iterator[tuple[dis.Instruction, int]]:
    for at in _body(code):
        yield at, (at.positions.lineno if at.positions is not None else 0) or 0
