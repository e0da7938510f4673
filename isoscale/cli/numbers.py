"""Numbers as options: within their range before the command does anything, and mistakes that read like all others."""

from __future__ import annotations

from collections.abc import Callable

import typer

from isoscale.limits import Range, within

__all__ = ["in_range", "shown_name"]


def in_range(bounds: Range) -> Callable[[typer.CallbackParam, float | None], float | None]:
    """The callback of an option that takes numbers of this range only."""

    def check(param: typer.CallbackParam, value: float | None) -> float | None:
        return value if value is None else within(value, shown_name(param), bounds)

    return check


def shown_name(param: typer.CallbackParam) -> str:
    """As the help names it: an option with its dashes, an argument by its placeholder."""
    if param.param_type_name == "option":
        return max(param.opts, key=len)
    return str(getattr(param, "metavar", None) or (param.name or "").upper())
