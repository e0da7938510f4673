"""A command line that cannot be parsed is told as every other bad input is: one line, exit code 2.

Typer's own message is a box of several lines that names neither the value nor where to look.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from isoscale.cli.numbers import shown_name

__all__ = ["Commands"]

#: the class of all errors of parsing, which typer does not export
_UsageError: Any = typer.BadParameter.__mro__[1]
_NUMBERS = {"valid integer": "is not a whole number", "valid number": "is not a number"}


class Commands(TyperGroup):
    """The root of the commands; parsing of a command's own arguments happens within `invoke`."""

    _words: tuple[str, ...] = ()

    def make_context(self, info_name: Any, args: list[str], *rest: Any, **extra: Any) -> Any:
        self._words = tuple(args)
        try:
            return super().make_context(info_name, args, *rest, **extra)
        except _UsageError as error:
            self._end(error)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            self._end(error)

    def _end(self, error: Any) -> NoReturn:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help text
            raise error
        print(f"isoscale: {_told(error, self._words)}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error


def _told(error: Any, words: Sequence[str]) -> str:
    """Field, value, problem and where to look; the message of typer where none of its kinds is known."""
    # An option without its value is noticed where the command is not known.
    command = error.ctx.command_path if error.ctx else " ".join(("isoscale", *words[:1]))
    help_ = f"{command} --help"
    kind, param = type(error).__name__, getattr(error, "param", None)
    if param is not None:
        field = shown_name(param)
        if kind == "MissingParameter":
            return f"{field} is missing; {help_} tells what it is"
        value = _given(param.opts, words) if param.param_type_name == "option" else None
        problem = next((told for part, told in _NUMBERS.items() if part in error.message), error.message)
        problem = problem.removeprefix("Value error, ").rstrip(".")
        return f"{field}{'' if value is None else f'={value}'}: {problem}; {help_} tells what it takes"
    if kind == "NoSuchOption":
        near = difflib.get_close_matches(error.option_name, error.possibilities or (), n=1)
        return f"{error.option_name}: no such option; {_meant(near)}{help_} lists all"
    if kind == "BadOptionUsage":
        wanted = "needs a value" if "requires" in error.message else "takes no value"
        return f"{error.option_name}: {wanted}; {help_} tells more"
    if error.message.startswith("No such command '"):
        asked = error.message.split("'")[1]
        near = difflib.get_close_matches(asked, error.ctx.command.list_commands(error.ctx), n=1)
        return f"{asked}: no such command; {_meant(near)}{help_} lists all"
    return f"{error.message.rstrip('.')}; {help_} tells more"


def _meant(names: list[str]) -> str:
    return f"did you mean {names[0]}? " if names else ""


def _given(names: Sequence[str], words: Sequence[str]) -> str | None:
    """The value that the command line has for an option; the error does not have it."""
    for word, following in zip(words, (*words[1:], None), strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else following
    return None
