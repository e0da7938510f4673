"""`job.on_main`: objects that only the main executor has, such as an experiment tracker.

The object is made when an executor becomes the main one and closed when it stops being so, whatever the reason: the
first step, a failure, a rescale, the end. Every executor knows what is logged and remembers the newest of it, so a
successor tells its tracker what its predecessor may have had no time to write. Values are the same bits whoever tells
them: told twice, they change no curve. Random numbers that a tracker draws move no stream of the job.
"""

from __future__ import annotations

import inspect
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from isoscale.core.rules import Turn
from isoscale.core.streams import rng
from isoscale.runtime.training.sink import Value
from isoscale.runtime.training.tracker_shapes import Close, Log, close_of, log_of

__all__ = ["LogChoice", "MainObjects", "MainRun", "OnMain"]

Thing = TypeVar("Thing")
#: a function; None: it is told nothing; "auto": by the names of its methods
LogChoice = Log | None | Literal["auto"]

#: logged values that an executor could tell if the main one is lost without having written them
_REMEMBERED = 256
#: a tracker that can be flushed is flushed so often: what a killed executor has not written is lost if nobody is left
_FLUSH_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MainRun:
    """What the factory of `job.on_main` may know of the run."""

    #: constant for the run's life, through every rescale, failure and resume; other runs have other ones
    id: str
    #: of the run's directory
    name: str
    #: the run's directory
    out: Path
    #: values of later steps will be told, also if a predecessor has told some of them already; 0 at the beginning
    step: int


class OnMain(Generic[Thing]):
    """What `job.on_main` gives: calls of its methods reach the object on the main executor, and do nothing elsewhere.

    They give None everywhere, so that no executor can decide by them. For effects only, outside turns.
    """

    __slots__ = ("_entry",)

    def __init__(self, entry: _Entry | None) -> None:
        """None: it is never made."""
        self._entry = entry

    @property
    def here(self) -> Thing | None:
        """The object itself on the main executor, None elsewhere."""
        made: Thing | None = self._entry.use() if self._entry is not None else None
        return made

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        entry = self._entry

        def call(*args: object, **kwargs: object) -> None:
            thing = entry.use() if entry is not None else None
            if thing is not None:
                with rng.isolated():
                    getattr(thing, name)(*args, **kwargs)

        return call


class MainObjects:
    """All objects of one process that are the main executor's. Owned by the training loop, on its thread."""

    def __init__(
        self,
        out: Path,
        turn: Turn,
        *,
        is_main: Callable[[], bool],
        step: Callable[[], int],
        warn: Callable[[str], None],
    ) -> None:
        """`is_main` and `step` (committed ones) are of this moment; `warn` tells what does not end the job."""
        self.turn = turn
        self.warn = warn
        self._out = out
        self._is_main = is_main
        self._step = step
        self._entries: list[_Entry] = []
        self._untold: deque[_Logged] = deque(maxlen=_REMEMBERED)
        #: whoever was main before a switch has told this, if all who took part in it seal a step after it
        self._handed: deque[_Logged] = deque(maxlen=_REMEMBERED)
        #: of the run; by default one that nobody else has
        self.run_id = secrets.token_hex(8)
        #: committed steps of the checkpoint that this process begins from
        self.begin_step = 0
        #: False where a run's effects are not wanted, as in a replay
        self.enabled = True

    def add(self, factory: Callable[..., Thing], *, log: LogChoice, close: Close | None, every: int) -> OnMain[Thing]:
        """Nothing is made yet."""
        self._entries.append(_Entry(self, factory, log, close, every))
        return OnMain(self._entries[-1])

    def settle(self) -> None:
        """Make what is missing on the main executor, and tell it what it does not know; close what another one has."""
        if not self._entries:
            return
        if not self.is_here:
            self.close()
            return
        for entry in self._entries:
            entry.make()
        while self._untold:
            logged = self._untold.popleft()
            for entry in self._entries:
                entry.tell(logged)

    def tell(self, step: int, values: Mapping[str, Value], *, is_step: bool) -> None:
        """Something was logged, in a step (`is_step`) or by `job.log`."""
        # A script that goes on from a checkpoint comes by places where it has logged before.
        if self._entries and self.enabled and values and step >= self.begin_step:
            if is_step:
                self._handed.clear()
            self._untold.append(_Logged(step, dict(values), is_step))
            self.settle()

    def tell_left(self) -> None:
        """Nothing more will be logged, with which a successor would tell what it remembers."""
        if self._untold and self.is_here:
            self.settle()

    def handed_over(self) -> None:
        """All executors go over to another generation together: whoever was main has told everything."""
        self._handed.extend(self._untold)
        self._untold.clear()

    def recovered(self) -> None:
        """Somebody was lost, perhaps the main one on its way over: what it should have told is remembered again."""
        self._untold = deque([*self._handed, *self._untold], maxlen=_REMEMBERED)
        self._handed.clear()

    def close(self) -> None:
        """This executor is not the main one any more, or ends."""
        for entry in self._entries:
            entry.close()

    @property
    def is_here(self) -> bool:
        return self.enabled and self._is_main()

    @property
    def has_trained(self) -> bool:
        """Has a step been committed here?"""
        return self._step() > self.begin_step

    def run(self) -> MainRun:
        step = max(self._step(), self.begin_step)
        known = min((logged.step - logged.is_step for logged in self._untold), default=step)
        return MainRun(id=self.run_id, name=self._out.name, out=self._out, step=max(0, min(known, step)))


@dataclass(frozen=True, slots=True)
class _Logged:
    #: committed steps by then
    step: int
    values: dict[str, Value]
    #: means of the step itself, as opposed to `job.log`
    is_step: bool


class _Entry:
    """One `job.on_main`: its factory, and the object while this executor is the main one."""

    def __init__(
        self, owner: MainObjects, factory: Callable[..., Any], log: LogChoice, close: Close | None, every: int
    ) -> None:
        self._owner = owner
        self._factory = factory
        self._choice = log
        self._close = close
        self._every = every
        self._made: Any = None
        self._log: Log | None = None
        self._flushed_at = 0.0
        #: it could not be made here, and is not tried again
        self._given_up = False
        self._has_warned = False

    def use(self) -> Any:
        """For the script; None on other executors."""
        owner = self._owner
        if owner.turn.logical_rank is not None:
            raise owner.turn.error(
                "an object of job.on_main is used in a turn, where it would see the logical workers of one executor",
                "use it after the inner loop, or log with step.log",
            )
        if owner.is_here:
            self.make()
        return self._made

    def make(self) -> None:
        """Raises what the factory raises as long as no step was trained here; later that costs the tracker only."""
        if self._made is not None or self._given_up:
            return
        try:
            with rng.isolated():
                made = self._factory(*([self._owner.run()] if _takes_run(self._factory) else []))
                self._log = log_of(made) if self._choice == "auto" else self._choice
            self._made, self._flushed_at = made, time.monotonic()
        except Exception as error:
            if not self._owner.has_trained:
                raise
            self._given_up = True
            self._warn("could not be made, so nothing is told to it from now on", error)

    def tell(self, logged: _Logged) -> None:
        log, thing = self._log, self._made
        if thing is None or log is None or (logged.is_step and (not self._every or logged.step % self._every)):
            return
        try:
            with rng.isolated():
                log(thing, logged.values, logged.step)
                if time.monotonic() - self._flushed_at > _FLUSH_S:
                    self._flushed_at = time.monotonic()
                    getattr(thing, "flush", lambda: None)()
        except Exception as error:
            if not self._has_warned:  # it may be out for hours
                self._has_warned = True
                self._warn(f"did not take what was logged at step {logged.step}", error)

    def close(self) -> None:
        thing, self._made = self._made, None
        if thing is None:
            return
        try:
            with rng.isolated():
                (self._close or close_of(thing))(thing)
        except Exception as error:
            self._warn("could not be closed", error)

    def _warn(self, what: str, error: Exception) -> None:
        name = getattr(self._factory, "__qualname__", type(self._factory).__name__)
        self._owner.warn(f"job.on_main({name}): the object {what}; training goes on ({type(error).__name__}: {error})")


def _takes_run(factory: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # of some builtins nobody knows
        return False
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
