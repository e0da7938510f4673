"""What an executor's state machine wants done. Values only.

Instructions are for the shell, at once, in order. An action is the answer to the training thread that asks what to do
next; by the time it acts a later order may have overtaken it.
"""

from __future__ import annotations

from dataclasses import dataclass

from isoscale.protocol import messages as m

__all__ = [
    "Action",
    "BreakOff",
    "Form",
    "GoOver",
    "HoldForPlan",
    "Instruction",
    "Meet",
    "Pause",
    "Quit",
    "Send",
    "Train",
]


@dataclass(frozen=True, slots=True)
class Form:
    """Form the group of the next generation beside training, and say `formed` or `not_formed`."""

    order: m.Prepare


@dataclass(frozen=True, slots=True)
class BreakOff:
    """Whoever waits in the group of this generation wakes up, and nothing more goes through it. May not exist yet."""

    generation: int


@dataclass(frozen=True, slots=True)
class Send:
    message: m.FromExecutor


Instruction = Form | BreakOff | Send


@dataclass(frozen=True, slots=True)
class Meet:
    """Give up the present exchange and go on with these."""

    order: m.Recover


@dataclass(frozen=True, slots=True)
class Quit:
    reason: str


@dataclass(frozen=True, slots=True)
class GoOver:
    """Into the generation that was prepared, or out of the job."""

    order: m.Prepare


@dataclass(frozen=True, slots=True)
class HoldForPlan:
    """The plan's next change comes before the next step."""


@dataclass(frozen=True, slots=True)
class Train:
    """The next step."""


Action = Meet | Quit | GoOver | HoldForPlan | Train


@dataclass(frozen=True, slots=True)
class Pause:
    """How long an executor did not train: unix seconds, and how long it waited for the order."""

    left_at: float
    started_at: float
    waited_s: float = 0.0
