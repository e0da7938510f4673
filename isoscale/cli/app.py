"""The commands by name, and what happens when one fails."""

from __future__ import annotations

import logging
import signal
import sys
from typing import Annotated

import typer

from isoscale import __version__
from isoscale.cli.check import check
from isoscale.cli.executor import executor
from isoscale.cli.live_job import checkpoint, resume, scale, status, stop
from isoscale.cli.outcome import ToldExit
from isoscale.cli.plan import plan
from isoscale.cli.profile import profile
from isoscale.cli.recipes import recipes
from isoscale.cli.replay import replay
from isoscale.cli.report import report
from isoscale.cli.run import run
from isoscale.cli.simulate import simulate
from isoscale.cli.verify import verify
from isoscale.errors import IsoscaleError

__all__ = ["app"]

_TERMINATED = 128 + signal.SIGTERM

cli = typer.Typer(
    name="isoscale",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Elastic PyTorch training that gives the same bits on any number of devices.",
    pretty_exceptions_enable=False,
)
cli.command(context_settings={"allow_interspersed_args": True})(run)
cli.command(context_settings={"allow_interspersed_args": True})(verify)
cli.command(context_settings={"allow_interspersed_args": True})(check)
cli.command(context_settings={"allow_interspersed_args": True})(profile)
cli.command(context_settings={"ignore_unknown_options": True})(scale)
cli.command()(status)
cli.command()(resume)
cli.command()(checkpoint)
cli.command()(stop)
cli.command()(executor)
cli.command()(replay)
cli.command()(recipes)
cli.command()(report)
cli.command()(simulate)
cli.add_typer(plan, name="plan")


def _version(show: bool) -> None:
    if show:
        typer.echo(f"isoscale {__version__}")
        raise typer.Exit


@cli.callback()
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
    try:
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
