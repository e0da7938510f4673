"""Commands that start no process, without the second that a cold start takes."""

from __future__ import annotations

from typer.testing import CliRunner

from isoscale.cli.app import command_line
from isoscale.errors import UserError

__all__ = ["printed", "refusal"]


def refusal(*arguments: object) -> str:
    """What `isoscale: ` is followed by when a command refuses its arguments with exit code 2: one line."""
    done = CliRunner().invoke(command_line(), [str(argument) for argument in arguments])
    assert isinstance(done.exception, UserError), done.output
    assert done.exception.exit_code == 2
    text = str(done.exception)
    assert "\n" not in text
    return text


def printed(*arguments: object) -> str:
    done = CliRunner().invoke(command_line(), [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout
