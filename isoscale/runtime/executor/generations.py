"""The generation that an executor is in and the one that is being prepared, as it knows them. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from isoscale.protocol import messages as m

__all__ = ["Generation", "Next", "Phase", "hands_over", "takes_part"]

#: warm: set up, not needed yet. approaching: a newcomer on its way to where it waits for the state. held: waits there.
#: member: trains, or lands, or waits to be told how to go on. leaving: out of the job, keeps the state until the others
#: have sealed a step. finished: the training function has returned.
Phase = Literal["warm", "approaching", "held", "member", "leaving", "finished"]


@dataclass(frozen=True, slots=True)
class Generation:
    """The one that this executor is in; number 0 before the first."""

    number: int = 0
    members: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()
    #: wait for the next generation when so many steps are committed
    hold_at: int | None = None
    #: committed steps when it was entered
    began_at: int = 0


@dataclass(slots=True)
class Next:
    """The generation that is being prepared."""

    order: m.Prepare
    #: its group is there, as far as this executor is in it
    formed: bool = False
    #: all have formed it, as the coordinator knows
    switch: m.Switch | None = None
    #: all have the order to switch, as a seal has shown
    agreed: bool = False


def hands_over(order: m.Prepare, executor: int) -> bool:
    """Is this executor in the group in which one who leaves hands the state to newcomers?"""
    return order.sender >= 0 and (order.index in order.senders or order.sender == executor)


def takes_part(order: m.Prepare, executor: int) -> bool:
    """Has this executor anything to form for the next generation?"""
    return order.index >= 0 or order.sender == executor
