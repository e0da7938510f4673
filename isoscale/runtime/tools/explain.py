"""Finds the first place at which two traces differ, and says it in a sentence. Pure, but for reading the files.

Places are compared in the order in which a job passes them: the state before a step, the turns by logical rank (batch,
random streams, forward operators, backward nodes, local gradients), the averaged gradients, the state after the step.
Does not run anything; traces are written by `runtime.probes.trace`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import msgspec

__all__ = ["Finding", "Record", "first_difference", "read_trace", "remedy", "sentence", "what_was_equal"]

_PLACES = ("before", "turn", "reduced", "after", "end")
_NOUNS = {
    "forward": "forward operator",
    "backward": "backward node",
    "gradient": "local gradient",
    "tensor": "tensor",
    "value": "plain value",
}
_Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line of a trace. `rank` is -1 for what all logical workers share."""

    step: int
    place: str
    rank: int
    kind: str
    name: str
    module: str = ""
    digest: str = ""
    shown: str = ""

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.kind, self.name, self.module


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The first record that differs; None on a side that has none there."""

    step: int
    place: str
    rank: int
    elastic: Record | None
    reference: Record | None
    #: how many records of each kind agree at this place before it
    equal_here: Counter[str]


def read_trace(directory: Path) -> list[Record]:
    """All records of one side, in the order of each file."""
    decoder = msgspec.json.Decoder(Record)
    paths = sorted(directory.glob("*.jsonl"))
    return [decoder.decode(line) for path in paths for line in path.read_bytes().splitlines()]


def first_difference(elastic: Iterable[Record], reference: Iterable[Record]) -> Finding | None:
    mine, theirs = _by_place(elastic), _by_place(reference)
    for key in sorted({*mine, *theirs}):
        equal: Counter[str] = Counter()
        for a, b in zip_longest(mine.get(key, []), theirs.get(key, [])):
            if a is None or b is None or a.identity != b.identity or a.digest != b.digest:
                return Finding(
                    step=key[0], place=_PLACES[key[1]], rank=key[2], elastic=a, reference=b, equal_here=equal
                )
            equal[a.kind] += 1
    return None


def sentence(finding: Finding) -> str:
    """What differs first, where."""
    a, b = finding.elastic, finding.reference
    where = _where(finding)
    if a is None or b is None:
        there = a or b
        assert there is not None
        side = "the reference" if a is None else "the elastic run"
        return f"{where}: only {side} has {_thing(there)}: the two took different paths"
    if a.identity != b.identity:
        return f"{where}: the elastic run has {_thing(a)} where the reference has {_thing(b)}"
    shown = f" (elastic {a.shown}, reference {b.shown})" if a.shown or b.shown else ""
    match a.kind:
        case "batch":
            return f"{where}: gets another batch"
        case "streams at the start":
            return f"{where}: its random streams differ before the turn starts"
        case "streams at the end":
            return f"{where}: its random streams differ at the end of the turn: other numbers were drawn"
        case "forward" | "backward":
            return f"{where}: {_thing(a)} gives other bits"
        case _:
            return f"{where}: {_thing(a)} differs{shown}"


def what_was_equal(finding: Finding) -> str:
    """Everything that agrees before it, in short."""
    parts = []
    if finding.place != "before":
        parts.append("the state before the step")
    if finding.place == "turn" and finding.rank > 0:
        parts.append("the turns of the logical workers before it")
    elif finding.place in ("reduced", "after"):
        parts.append("all turns of the step")
    if finding.place in ("after", "end"):
        parts.append("the averaged gradients")
    for kind, count in finding.equal_here.items():
        plural = "s" if count != 1 else ""
        parts.append(f"{count} {_NOUNS[kind]}{plural}" if kind in _NOUNS else f"its {kind}")
    return ", ".join(parts) or "nothing"


def remedy(finding: Finding) -> str:
    """Where such a difference usually comes from."""
    if finding.place == "reduced":
        return "every turn gave equal gradients, so the averaging itself differs: please report it, this is our bug"
    if finding.place != "turn":
        return (
            "code outside turns depends on something that is not equal in both runs: the environment, the number of "
            "processes, a value that is neither kept nor from step.totals"
        )
    if finding.elastic is not None and finding.elastic.kind == "forward" and ".generator" in finding.elastic.name:
        return (
            "it draws from a torch.Generator that the logical workers of an executor share; give each its own: "
            "generator = job.keep_per_worker('generator', make_generator)"
        )
    return (
        "something that is no parameter, no buffer and not kept decides it, and the logical workers of an executor "
        "share it: keep it with job.keep_per_worker"
    )


def _by_place(records: Iterable[Record]) -> dict[_Key, Sequence[Record]]:
    places: dict[_Key, list[Record]] = {}
    for record in records:
        places.setdefault((record.step, _PLACES.index(record.place), record.rank), []).append(record)
    return dict(places)


def _where(finding: Finding) -> str:
    match finding.place:
        case "turn":
            return f"step {finding.step}, logical worker {finding.rank}"
        case "reduced":
            return f"step {finding.step}, averaged gradients"
        case "after":
            return f"outside turns after step {finding.step}"
        case "before" if finding.step == 1:
            return "before the first step"
        case "before":
            return f"outside turns after step {finding.step - 1}"
        case _:
            return "outside turns after the last step"


def _thing(record: Record) -> str:
    module = f" in module {record.module}" if record.module else ""
    match record.kind:
        case "forward":
            return f"forward operator {record.name}{module or ' outside any module'}"
        case "backward":
            return f"backward node {record.name}{module}"
        case "gradient":
            return f"the local gradient of {record.name}"
        case "all":
            return "the gradients" if record.place == "reduced" else "the state of model, optimizer and kept objects"
        case "tensor" | "value":
            return f"{record.kind} {record.name}"
        case _:
            return f"its {record.kind}"
