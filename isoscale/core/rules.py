"""The turn's shared state and the errors that a broken turn rule raises.

A rule error names the logical rank, the line of the user's script and the remedy. Checks that need
a whole turn are raised when it ends; errors never leave from inside autograd.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from isoscale.errors import TurnRuleError

__all__ = ["Turn", "is_ours", "is_users", "location_of", "user_location"]

# With the separator: a script may live in a directory whose name only starts like the package's.
_PACKAGE = os.path.join(Path(__file__).resolve().parent.parent, "")
#: recipes are users of the public API: their lines are the ones to name
_RECIPES = os.path.join(_PACKAGE, "recipes", "")
#: contextlib stands between `with step.accumulate():` and the script
_STANDARD_LIBRARY = os.path.join(sysconfig.get_path("stdlib"), "")


@dataclass(slots=True)
class Turn:
    """Where the executor stands. One object per job, shared by everything that must know."""

    #: None outside turns
    logical_rank: int | None = None
    #: False in turns of an evaluation loader
    training: bool = True
    #: inside `with step.accumulate():`
    accumulating: bool = False

    def error(self, rule: str, remedy: str, *, location: str | None = None) -> TurnRuleError:
        return TurnRuleError(
            rule=rule, logical_rank=self.logical_rank, location=location or user_location(), remedy=remedy
        )


def user_location() -> str:
    """The innermost line that is neither isoscale's nor a library's, as file:line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return location_of(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return "<unknown>:0"


def is_users(filename: str) -> bool:
    """Is it neither isoscale's nor a library's?"""
    library = "site-packages" in filename or filename.startswith(("<", _STANDARD_LIBRARY))
    return not library and not is_ours(filename)


def is_ours(filename: str) -> bool:
    """Is it isoscale's own?"""
    return filename.startswith(_PACKAGE) and not filename.startswith(_RECIPES)


def location_of(code: CodeType, line: int) -> str:
    return f"{Path(code.co_filename).name}:{line}"
