"""Does the script carry numbers from step to step that nobody keeps: an `enumerate`, a counter, a meter, a best value?

Such a job trains well until an executor joins or resumes in mid-run, which has run the script from the top. Looked for
in the first steps of every pass, at every epoch and whenever the state is written or sent; and where it was loaded the
script's numbers must be those that the sender had. When that is due is decided by `runtime.training.loop`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from types import CodeType

import torch

from isoscale.core.rules import location_of
from isoscale.core.script_numbers import Numbers, counts_by_itself, script_frames, script_numbers
from isoscale.errors import AuditError, TurnRuleError
from isoscale.runtime.training.state import Attributes, JobState

__all__ = ["NumberAudit"]

_CLOCKS = (time.time, time.monotonic, time.perf_counter)
#: a script that counts shows it in its first steps
_FIRST_STEPS = 3


class NumberAudit:
    """Called between steps, under the training function."""

    def __init__(self, state: JobState, train_code: CodeType | None) -> None:
        self._state = state
        self._train_code = train_code
        self._begun = [clock() for clock in _CLOCKS]
        #: names that the script says decide nothing
        self._ignored: set[str] = set()
        #: at the first step of the present pass, and at the last epoch
        self._pass: Numbers | None = None
        self._epoch: Numbers | None = None

    def ignore(self, names: tuple[str, ...]) -> None:
        self._ignored |= set(names)

    def begin_pass(self) -> None:
        """Over a training loader: what the script did before it, whoever joins in the pass does too."""
        self._pass = None

    def at_step(self, index: int, *, due: bool) -> None:
        """Before a step of a training loader, the `index`-th since a pass began here."""
        if index == 0:
            self._pass = self._take()
            self._check_loop()
        elif index < _FIRST_STEPS or due:
            self._check_pass(self._take())

    def at_epoch(self) -> None:
        """`job.epochs` or `job.steps` is about to hand out another epoch."""
        now = self._take()
        if self._epoch is not None and (key := now.changed(self._epoch)):
            raise self._lost(now, key, "epoch to epoch")
        self._epoch = now

    def sent(self) -> dict[str, int | float | None] | None:
        """What goes with the job's state: the numbers that whoever loads it must have. None where no script runs."""
        now = self._take()
        self._check_pass(now)
        return now.plain() if now.place else None

    def received(self, sent: Mapping[str, int | float | None]) -> None:
        """The job's state was loaded: this process stands where the sender stood."""
        now = self._take()
        told = {key: value for key, value in sent.items() if not self._is_ignored(key)}
        key = now.differing({key: None if self._is_reading(value) else value for key, value in told.items()})
        if key is not None:
            mine, theirs = now.plain().get(key, "not set"), sent.get(key, "not set")
            problem = f"is {mine} where an executor joins or resumes, and was {theirs} where the state was saved"
            raise AuditError(tensor=_label(now, key), executors=(), problem=problem, remedy=_remedy(key, now))

    def _take(self) -> Numbers:
        frames = script_frames(sys._getframe(), self._train_code)
        if not frames:
            return Numbers((), {}, {})
        things = [one.thing if isinstance(one, Attributes) else one for one in self._state.kept.values()]
        kept: list[object] = [*things, self._state.values]
        addresses: set[int] = set()

        def is_kept(tensor: torch.Tensor) -> bool:
            if not addresses:  # collected only if it is needed: there may be many
                addresses.update(one.data_ptr() for one in self._state.tensors())
            return tensor.data_ptr() in addresses

        numbers = script_numbers(frames, kept, is_kept)
        values = {key: value for key, value in numbers.values.items() if not self._is_ignored(key)}
        # Told, not left out: a constant may look like a reading to one process and not to another that began later.
        readings = frozenset(key for key, value in values.items() if self._is_reading(value))
        values = {key: value for key, value in values.items() if key not in readings}
        return Numbers(numbers.place, values, numbers.locations, readings)

    def _check_loop(self) -> None:
        frames = script_frames(sys._getframe(), self._train_code)
        if frames and counts_by_itself(frames[0]):
            raise TurnRuleError(
                rule="enumerate or zip over a training loader counts from 0 on an executor that joins or resumes in "
                "mid-epoch",
                logical_rank=None,
                location=location_of(frames[0].f_code, frames[0].f_lineno),
                remedy="loop over the loader itself, 'for step in loader:', and use step.index",
            )

    def _check_pass(self, now: Numbers) -> None:
        if self._pass is not None and (key := now.changed(self._pass)):
            raise self._lost(now, key, "step to step")

    def _is_ignored(self, key: str) -> bool:
        """By the script's word."""
        path = key.partition(":")[2]
        return bool(self._ignored) and bool(self._ignored & {path, _root(path), path.rpartition(".")[2]})

    def _is_reading(self, value: object) -> bool:
        """May it be one of a clock, in seconds or nanoseconds, or the number of this process?

        Whole seconds only since 1970: small whole numbers are what scripts count and configure, and any of them may
        be the age of a machine.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        spans = zip(_CLOCKS, self._begun, (clock() for clock in _CLOCKS), strict=True)
        if isinstance(value, float):
            return any(begun <= value <= now for _, begun, now in spans)
        if value == os.getpid():
            return True
        return any(
            begun <= value * 1e-9 <= now or (clock is time.time and int(begun) <= value <= now)
            for clock, begun, now in spans
        )

    @staticmethod
    def _lost(now: Numbers, key: str, span: str) -> AuditError:
        problem = (
            f"changes from {span} but is not kept, so an executor that joins or resumes in mid-run would have another "
            "value"
        )
        return AuditError(tensor=_label(now, key), executors=(), problem=problem, remedy=_remedy(key, now))


def _label(numbers: Numbers, key: str) -> str:
    where = numbers.locations.get(key)
    path = key.partition(":")[2]
    return f"{where}: variable {path!r}" if where else f"variable {path!r}"


def _remedy(key: str, numbers: Numbers) -> str:
    path = key.partition(":")[2]
    root, value = _root(path), numbers.values.get(key)
    last = path.rpartition(".")[2]
    name = root if root != "self" else last
    if "." in path and root != "self":
        remedy = f"keep it in set-up: {root} = job.keep({root!r}, {root})"
    elif isinstance(value, int):
        remedy = f"use step.index, job.step or job.epoch, or put it into job.state[{last!r}]"
    else:
        remedy = f"put it into job.state[{last!r}], or take it from step.totals or loader.totals"
    remedy += " (job.keep_per_worker if turns change it)"
    return f"{remedy}; if it only measures (times, throughput): job.unkept({name!r})"


def _root(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]
