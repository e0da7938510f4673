"""Faults at precise places inside an executor, for tests: "executor 1 is killed in the seal of step 7".

Named by the variable ISOSCALE_FAULT, which only `isoscale.testing` sets, as faults separated by ";":

    executor=1,point=seal,step=7,action=kill;executor=2,point=landing,action=stop

A point is a function of the runtime that is wrapped when the executor starts, and only then: without the
variable this module is not even imported, and no point costs anything. Each fault happens once.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from isoscale.errors import UserError

if TYPE_CHECKING:
    from isoscale.core.tracked import TrackedModel
    from isoscale.runtime.executor.member import Member
    from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["POINTS", "Action", "FaultPoint", "InjectedError", "install", "parse"]

Action = Literal["kill", "stop", "term", "raise", "break", "sleep"]

_ACTIONS = ("kill", "stop", "term", "raise", "break", "sleep")

#: every point, and whether the step that is at hand there is committed already
POINTS: dict[str, bool] = {
    "forward": False,
    "backward": False,
    "exchange": False,
    "contexts": False,
    "seal": False,
    "sealed": False,
    "optimizer": True,
    "evaluation": True,
    "checkpoint": True,
    "checkpointed": True,
    "forming": True,
    "formed": True,
    "switch": True,
    "handover": True,
    "handed": True,
    "joining": True,
    "landing": True,
    "leaving": True,
    "recovering": True,
    "agreeing": True,
    "end": True,
    "ended": True,
    "saving": True,
    "saved": True,
}


class InjectedError(RuntimeError):
    """What the action `raise` raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPoint:
    """`step` is the step at hand (the first is 1); None: whenever the point is first reached."""

    executor: int
    point: str
    step: int | None = None
    action: Action = "kill"
    #: of the action `sleep`
    seconds: float = 1.0

    def __str__(self) -> str:
        fields = [f"executor={self.executor}", f"point={self.point}", f"action={self.action}"]
        fields += [] if self.step is None else [f"step={self.step}"]
        fields += [f"seconds={self.seconds}"] if self.action == "sleep" else []
        return ",".join(fields)


def parse(text: str) -> list[FaultPoint]:
    """Raises UserError.

    >>> str(parse("executor=1,point=seal,step=7")[0])
    'executor=1,point=seal,action=kill,step=7'
    """
    return [_parse_one(part) for part in text.split(";") if part]


def install(text: str, member: Member, loop: TrainingLoop) -> None:
    """Wrap the points at which something is to happen in this executor."""
    for fault in parse(text):
        if fault.executor == member.executor:
            _WRAP[fault.point](_Trigger(fault, member, loop))


class _Trigger:
    """Called whenever its point is reached; acts at the right step, once."""

    def __init__(self, fault: FaultPoint, member: Member, loop: TrainingLoop) -> None:
        self.fault, self.member, self.loop = fault, member, loop
        self._is_spent = False

    def __call__(self, step: int | None = None) -> None:
        """`step` is the one at hand, where that is not the job's."""
        fault = self.fault
        at_hand = self.loop.step + (not POINTS[fault.point]) if step is None else step
        if self._is_spent or fault.step not in (None, at_hand):
            return
        self._is_spent = True
        print(f"isoscale: fault: {fault}", flush=True)
        match fault.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "term":
                os.kill(os.getpid(), signal.SIGTERM)
            case "raise":
                raise InjectedError(f"at the point {fault.point}")
            case "break":
                from isoscale.core.reduction.exchange import ExchangeBrokenError

                self.loop.engine.exchange.break_off()
                raise ExchangeBrokenError(f"broken at the point {fault.point}")
            case "sleep":
                time.sleep(fault.seconds)

    def before(self, owner: object, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self()
            return original(*args, **kwargs)

        setattr(owner, name, wrapped)

    def after(self, owner: object, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self()
            return result

        setattr(owner, name, wrapped)


def _in_model(trigger: _Trigger) -> None:
    """In a turn: at the first module's forward, or when the first gradient is there."""
    original = trigger.loop.add_model

    def add_model(module: Any, **options: Any) -> TrackedModel:
        tracked = original(module, **options)
        turn = trigger.loop.engine.turn

        def reached(*_: object) -> None:
            if turn.logical_rank is not None and turn.training:
                trigger()

        if trigger.fault.point == "forward":
            module.register_forward_pre_hook(reached)
        else:
            next(p for p in module.parameters() if p.requires_grad).register_post_accumulate_grad_hook(reached)
        return tracked

    trigger.loop.add_model = add_model  # type: ignore[method-assign]


def _in_exchange(trigger: _Trigger) -> None:
    """When the first message of a bucket is on its way."""
    from isoscale.runtime.transport import gloo as collective

    trigger.after(collective._RingLinks, "send")
    trigger.after(collective.GlooExchange, "all_reduce")
    trigger.before(collective.GlooExchange, "_tree")


def _in_contexts(trigger: _Trigger) -> None:
    from isoscale.core.sharing import Sharing

    trigger.before(Sharing, "message")


def _at_seal(trigger: _Trigger) -> None:
    from isoscale.core.seal import Seal

    if trigger.fault.action == "break":
        # In the midst of it: this executor has entered the seal, and will not learn whether it was closed.
        trigger.after(Seal, "_pack")
        return
    (trigger.before if trigger.fault.point == "seal" else trigger.after)(Seal, "close")


def _in_optimizer(trigger: _Trigger) -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: trigger())


def _in_evaluation(trigger: _Trigger) -> None:
    engine = trigger.loop.engine
    original = engine.open_turn

    def open_turn(logical_rank: int, *, last: bool) -> None:
        original(logical_rank, last=last)
        if not engine.turn.training:
            trigger()

    engine.open_turn = open_turn  # type: ignore[method-assign]


def _of_blob(trigger: _Trigger) -> None:
    """One who has the state sends it to a newcomer."""
    from isoscale.runtime.transport import gloo as collective

    (trigger.before if trigger.fault.point == "handover" else trigger.after)(collective, "send_blob")


def _of_checkpoint(trigger: _Trigger) -> None:
    """A checkpoint is written beside training, which goes on meanwhile: the step at hand is the checkpoint's."""
    writer = trigger.member.writer
    original = writer._write

    def write(snapshot: dict[str, Any], step: int, generation: int, blocked: float, *, final: bool = False) -> bool:
        if trigger.fault.point == "checkpoint":
            trigger(step)
        written = original(snapshot, step, generation, blocked, final=final)
        if trigger.fault.point == "checkpointed":
            trigger(step)
        return written

    writer._write = write  # type: ignore[method-assign]


def _saving(trigger: _Trigger) -> None:
    from isoscale.runtime.executor import result

    (trigger.before if trigger.fault.point == "saving" else trigger.after)(result, "save_result")


def _wrap_object(get: Callable[[_Trigger], object], name: str, *, after: bool = False) -> Callable[[_Trigger], None]:
    def wrap(trigger: _Trigger) -> None:
        (trigger.after if after else trigger.before)(get(trigger), name)

    return wrap


_WRAP: dict[str, Callable[[_Trigger], None]] = {
    "forward": _in_model,
    "backward": _in_model,
    "exchange": _in_exchange,
    "contexts": _in_contexts,
    "seal": _at_seal,
    "sealed": _at_seal,
    "optimizer": _in_optimizer,
    "evaluation": _in_evaluation,
    "checkpoint": _of_checkpoint,
    "checkpointed": _of_checkpoint,
    "forming": _wrap_object(lambda trigger: trigger.member.orders, "form"),
    "formed": _wrap_object(lambda trigger: trigger.member.orders, "form", after=True),
    "switch": _wrap_object(lambda trigger: trigger.member.switching, "go_over"),
    "handover": _of_blob,
    "handed": _of_blob,
    "joining": _wrap_object(lambda trigger: trigger.member.newcomer, "receive_state"),
    "landing": _wrap_object(lambda trigger: trigger.member.newcomer, "land"),
    "leaving": _wrap_object(lambda trigger: trigger.member.switching, "hand_over_and_leave"),
    "recovering": _wrap_object(lambda trigger: trigger.member.recoveries, "find_others"),
    "agreeing": _wrap_object(lambda trigger: trigger.member.recoveries, "agree"),
    "end": _wrap_object(lambda trigger: trigger.loop.engine, "seal_end"),
    "ended": _wrap_object(lambda trigger: trigger.loop.engine, "seal_end", after=True),
    "saving": _saving,
    "saved": _saving,
}


def _parse_one(text: str) -> FaultPoint:
    fields = dict(part.strip().partition("=")[::2] for part in text.split(","))
    try:
        fault = FaultPoint(
            executor=_number(fields.pop("executor")),
            point=fields.pop("point"),
            step=_number(fields.pop("step")) if "step" in fields else None,
            action=fields.pop("action", "kill"),  # type: ignore[arg-type]
            seconds=float(fields.pop("seconds", "1")),
        )
    except (KeyError, ValueError):
        fault = None
    if fault is None or fields or fault.point not in POINTS or fault.action not in _ACTIONS:
        raise UserError(
            field="ISOSCALE_FAULT",
            value=text,
            problem="not a fault",
            remedy=f"give executor=E,point=POINT,step=S,action=ACTION; points: {', '.join(POINTS)}; "
            f"actions: {', '.join(_ACTIONS)}",
        )
    return fault


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(text)
    return int(text)
