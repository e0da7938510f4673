"""Writes what a job does as digests, one JSON object a line, so that two runs can be compared place by place.

A probe (`runtime.training.probe`) that both the elastic job and the reference carry when `JobSpec.trace` says so. With
0 every step leaves a few digests, enough to find the first step that differs; with k step k leaves everything in order:
the batch, the random streams, forward operators, backward nodes, local gradients, reduced gradients, state. Files lie
in `out`/trace, one per process. Reading and comparing them is `runtime.tools.explain`'s business.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from isoscale.core.encoding.digest import flat_state
from isoscale.runtime.probes.operators import OperatorTrace, bits
from isoscale.runtime.training.state import Stateful

if TYPE_CHECKING:
    from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["Subject", "Tracer", "trace_job"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What there is to look at, whichever side it is on."""

    models: Callable[[], dict[str, torch.nn.Module]]
    kept: Callable[[], dict[str, Stateful]]
    values: dict[str, object]

    def state(self) -> Iterator[tuple[str, object]]:
        models = {name: module.state_dict() for name, module in self.models().items()}
        yield from flat_state({"model": next(iter(models.values()))} if len(models) == 1 else {"models": models})
        yield from flat_state({name: thing.state_dict() for name, thing in self.kept().items()})
        yield from flat_state({"state": self.values})

    def gradients(self) -> Iterator[tuple[str, object]]:
        models = self.models()
        for name, module in models.items():
            prefix = f"{name}." if len(models) > 1 else ""
            yield from ((f"{prefix}{path}", p.grad) for path, p in module.named_parameters())


def trace_job(loop: TrainingLoop, executor: int) -> None:
    """Let an executor's job leave its trace."""
    state = loop.state
    subject = Subject(lambda: {n: m.module for n, m in state.models.items()}, lambda: state.kept, state.values)
    path = loop.out / "trace" / f"executor-{executor}.jsonl"
    loop.attach(Tracer(path, loop.spec.trace or 0, subject, lambda: loop.is_main))


class Tracer:
    """A probe that writes. Only the main process of a side, which may change, writes what all of them share."""

    def __init__(self, path: Path, everything_at: int, subject: Subject, is_main: Callable[[], bool]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")
        self._at = everything_at
        self._subject = subject
        self._is_main = is_main
        self._step = 0
        self._operators: OperatorTrace | None = None

    def before_step(self, step: int) -> None:
        self._step = step
        self._shared("before", self._subject.state())

    def turn_begins(self, logical_rank: int, batch: object) -> None:
        if self._skips():
            return
        self._write("turn", logical_rank, "batch", "", digest=bits(batch))
        self._write("turn", logical_rank, "streams at the start", "", digest=_streams())
        if self._at:
            self._operators = OperatorTrace(
                lambda kind, name, module, digest: self._write("turn", logical_rank, kind, name, module, digest),
                self._subject.models(),
            )
            self._operators.start()

    def turn_ends(self, logical_rank: int) -> None:
        if self._operators is not None:
            self._operators.stop()
            self._operators = None
        if not self._skips():
            self._write("turn", logical_rank, "streams at the end", "", digest=_streams())

    def reduced(self, step: int) -> None:
        self._shared("reduced", self._subject.gradients())

    def after_step(self, step: int) -> None:
        self._shared("after", self._subject.state())

    def ended(self, step: int) -> None:
        # In the order of places after everything else, whatever step was the last.
        self._step = self._at or step
        self._shared("end", self._subject.state())
        self._file.close()

    def _skips(self) -> bool:
        return self._at not in (0, self._step)

    def _shared(self, place: str, leaves: Iterator[tuple[str, object]]) -> None:
        if self._skips() or not self._is_main():
            return
        if not self._at:
            self._write(place, -1, "all", "", digest=bits(dict(leaves)))
            return
        for name, leaf in leaves:
            kind = "tensor" if isinstance(leaf, torch.Tensor) else "value"
            shown = "" if kind == "tensor" else repr(leaf)[:60]
            self._write(place, -1, kind, name, digest=bits(leaf), shown=shown)

    def _write(
        self, place: str, logical_rank: int, kind: str, name: str, module: str = "", digest: str = "", shown: str = ""
    ) -> None:
        record = {
            "step": self._step,
            "place": place,
            "rank": logical_rank,
            "kind": kind,
            "name": name,
            "module": module,
            "digest": digest,
            "shown": shown,
        }
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


def _streams() -> str:
    numpy_parts = [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    return bits([repr(random.getstate()), repr(numpy_parts), torch.get_rng_state()])
