"""The commands by name, and what happens when one fails."""

from __future__ import annotations

import gc
import importlib
import logging
import signal
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from isoscale import __version__
from isoscale.cli.misuse import Commands
from isoscale.cli.outcome import ToldExit
from isoscale.errors import IsoscaleError

__all__ = ["app", "command_line"]

_TERMINATED = 128 + signal.SIGTERM
_TAKES_SCRIPT = {"allow_interspersed_args": True}

#: help shows the commands in these groups: name of a command, where it is, and how its arguments are read
_GROUPS: dict[str, dict[str, tuple[str, dict[str, bool]]]] = {
    "Train one job": {
        "run": ("run", _TAKES_SCRIPT),
        "verify": ("verify", _TAKES_SCRIPT),
        "scale": ("live_job", {"ignore_unknown_options": True}),
        "status": ("live_job", {}),
        "checkpoint": ("live_job", {}),
        "stop": ("live_job", {}),
        "resume": ("live_job", {}),
        "replay": ("replay", {}),
        "report": ("report", {}),
        "executor": ("executor", {}),
        "warm": ("warm", {}),
        "recipes": ("recipes", {}),
    },
    "Measure and plan one job": {
        "check": ("check", _TAKES_SCRIPT),
        "profile": ("profile", _TAKES_SCRIPT),
        "plan": ("plan", {}),
    },
    "Run many jobs on shared devices": {
        "serve": ("serve", {}),
        "submit": ("submit", _TAKES_SCRIPT),
        "jobs": ("jobs", {}),
        "devices": ("cluster_devices", {}),
        "lend": ("cluster_devices", {}),
        "reclaim": ("cluster_devices", {}),
        "dashboard": ("dashboard", {}),
    },
    "Simulate and analyze clusters": {
        "simulate": ("simulate", {}),
        "policies": ("policies", {}),
        "analyze": ("analyze", {}),
    },
}
_COMMANDS = {name: (group, *found) for group, commands in _GROUPS.items() for name, found in commands.items()}


def command_line(names: Iterable[str] = _COMMANDS) -> typer.Typer:
    """Of these commands: each imports what it needs, and none of the others should wait for that."""
    cli = typer.Typer(
        name="isoscale",
        cls=Commands,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        help="Elastic PyTorch training: the same bits on any number of processes.",
        pretty_exceptions_enable=False,
    )
    for name in names:
        group, module, context = _COMMANDS[name]
        command = getattr(importlib.import_module(f"isoscale.cli.{module}"), name)
        if isinstance(command, typer.Typer):
            cli.add_typer(command, name=name, rich_help_panel=group)
        else:
            cli.command(context_settings=context, rich_help_panel=group)(command)
    cli.callback()(_main)
    return cli


def _version(show: bool) -> None:
    if show:
        typer.echo(f"isoscale {__version__}")
        raise typer.Exit


def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
) -> None:
    pass


def _terminate(*_: object) -> None:
    # asyncio would show a traceback of the work that is broken off.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
    sys.exit(_TERMINATED)


def app() -> None:
    """Run the command line; turns errors into one line and an exit code."""
    # Ended politely (a batch system's notice), executors end too, as after Ctrl-C.
    signal.signal(signal.SIGTERM, _terminate)
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    try:
        cli = command_line([asked] if asked in _COMMANDS else _COMMANDS)
        gc.freeze()
        gc.enable()
        cli()
    except SystemExit as exit_:
        # typer has turned KeyboardInterrupt into this already; a job that was stopped has been told of.
        if exit_.code == 130 and not isinstance(exit_.__context__, ToldExit):
            print("isoscale: interrupted", file=sys.stderr)
        elif exit_.code == _TERMINATED:
            print("isoscale: ended by SIGTERM", file=sys.stderr)
        raise
    except IsoscaleError as error:
        if "--debug" in sys.argv:
            raise
        print(f"isoscale: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
