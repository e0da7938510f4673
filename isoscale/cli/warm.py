"""`isoscale warm`: keep processes that have imported torch, so that runs of the same user start without that wait."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from isoscale import limits
from isoscale.backends.local import training_environment
from isoscale.backends.warm import WarmParents
from isoscale.backends.warm_sharing import Keeper, sharing_directory
from isoscale.cli import options as o
from isoscale.cli.numbers import in_range
from isoscale.kinds import profile_of
from isoscale.runtime.coordinator.run import WARM_UP

__all__ = ["warm"]


def warm(
    minutes: Annotated[
        float | None,
        typer.Option(help="End after so many minutes.", show_default=False, callback=in_range(limits.WARM_MINUTES)),
    ] = None,
    threads: o.Threads = 1,
) -> None:
    """Keep processes that have imported torch ready until Ctrl-C: runs of this user start in a fraction of a second."""
    directory = sharing_directory()
    keeper = Keeper(directory, WarmParents(WARM_UP, Path(os.devnull)))
    console = Console(stderr=True)
    try:
        keeper.prepare(training_environment({}, profile_of("cpu"), threads))
        console.print(Text(f"keeping warm processes at {directory}; Ctrl-C ends them, and no run", style="dim"))
        keeper.serve(None if minutes is None else time.monotonic() + 60 * minutes, time.monotonic)
    finally:
        keeper.close()
