"""Tells the coordinator what this executor has imported and what data it reads, before it joins and ever after."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sized
from itertools import islice

from isoscale.data.readers.source import is_source
from isoscale.protocol import messages as m
from isoscale.runtime.code.imports import Imported, Imports

__all__ = ["Uses", "data_facts"]

#: modules in a message, which is bounded
_AT_ONCE = 4000
#: of data sets that wrap others
_MAX_DEPTH = 5
_MAX_FINGERPRINT = 200


class Uses:
    def __init__(self, imports: Imports | None, send: Callable[[m.FromExecutor], None]) -> None:
        """Sends all that is known by now. Without `imports` the process was not started by a coordinator of ours."""
        self._send = send
        self._imports = imports
        self._data: dict[str, str] = {}
        self._declared: m.Declared | None = None
        if imports is not None:
            self._tell(imports.subscribe(self._tell_more), imports.versions())

    def again(self) -> None:
        """All of it, to another coordinator."""
        if self._imports is not None:
            self._tell(self._imports.everything(), self._imports.versions())
        if self._data:
            self._send(m.Uses(data=dict(self._data)))
        if self._declared is not None:
            self._send(self._declared)

    def reads(self, loader: str, facts: str) -> None:
        self._data[loader] = facts
        self._send(m.Uses(data={loader: facts}))

    def declares(self, sizes: tuple[int, ...], size: int, rule: str) -> None:
        """The script lets its batch size change."""
        self._declared = m.Declared(sizes=sizes, size=size, rule=rule)
        self._send(self._declared)

    def _tell_more(self, imported: Imported) -> None:
        self._tell(imported, {})

    def _tell(self, imported: Imported, versions: dict[str, str]) -> None:
        for names in _portions(imported.modules):
            self._send(
                m.Uses(
                    modules={name: imported.modules[name] for name in names},
                    paths={name: imported.paths[name] for name in names if name in imported.paths},
                    versions=versions,
                )
            )


def data_facts(data: object) -> str:
    """Length and fingerprint of a data set, or partitions and identity of a source; "" if it offers nothing."""
    facts = []
    if isinstance(data, Sized):
        with contextlib.suppress(TypeError, NotImplementedError):
            facts.append(f"{len(data)} samples")
    if is_source(data):
        facts.append(f"{data.num_partitions} partitions, identity {data.identity}")
    if fingerprint := _fingerprint(data):
        facts.append(f"fingerprint {fingerprint}")
    return ", ".join(facts)


def _fingerprint(data: object) -> str:
    """Its own, or that of the data set it is a view of. Hugging Face's is called `_fingerprint`."""
    for _ in range(_MAX_DEPTH):
        for name in ("fingerprint", "_fingerprint"):
            found = None
            with contextlib.suppress(Exception):  # a method that wants arguments is meant for something else
                found = getattr(data, name, None)
                found = found() if callable(found) else found
            if isinstance(found, str | int | bytes) and not isinstance(found, bool):
                return str(found)[:_MAX_FINGERPRINT]
        data = getattr(data, "dataset", None)
        if data is None:
            break
    return ""


def _portions(names: dict[str, str]) -> Iterator[list[str]]:
    left = iter(names)
    while portion := list(islice(left, _AT_ONCE)):
        yield portion
