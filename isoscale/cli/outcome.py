"""How a job ended, told on the terminal: what every command that runs one says last."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from isoscale.cli.progress import count, duration
from isoscale.cli.screen import console_of_a_job
from isoscale.protocol.events import read_events
from isoscale.runtime.control.home import EXIT_ELSEWHERE
from isoscale.runtime.coordinator.journal import RunResult

__all__ = ["ToldExit", "report_failure", "report_success", "show_traceback", "sizes"]

#: the job was stopped: by `isoscale stop` or Ctrl-C, by SIGTERM
_STOPPED = (130, 143)


class ToldExit(typer.Exit):
    """Ends the command after its story has been told."""


def report_success(console: Console, result: RunResult, workers: int, out: object) -> None:
    why = f" ({result.stop_reason})" if result.stop_reason else ""
    of_workers = f" of {count(workers, 'logical worker')}" if workers else ""
    changes = [
        f", {count(number, noun)}"
        for number, noun in ((result.num_rescales, "rescale"), (result.num_lost, "lost executor"))
        if number
    ]
    console.print(
        f"done{why}: {result.step} steps{of_workers} in {duration(result.seconds)}{''.join(changes)}",
        highlight=False,
    )
    console.print(f"digest {result.digest}", highlight=False)
    console.print(f"result {result.saved or f'{out}/final.pt'}", highlight=False)
    if result.exit_code == EXIT_ELSEWHERE:
        text = f"isoscale: {out} cannot be written any more; result and event log are in {Path(result.saved).parent}"
        console.print(Text(text, style="yellow"), highlight=False)


def report_failure(result: RunResult, out: object) -> None:
    """The traceback once, then one line that says what happened."""
    console = console_of_a_job(stderr=True, stopped=result.exit_code in _STOPPED)
    if result.traceback:
        show_traceback(console, result.traceback)
    style = "default" if result.exit_code in _STOPPED else "bold red"
    console.print(Text(f"isoscale: {result.error}", style=style), highlight=False)
    if out is not None:
        console.print(Text(f"logs in {out}/logs", style="dim"), highlight=False)


def show_traceback(console: Console, text: str, where: str = "") -> None:
    """Without a box: lines are to be copied, and in a log none may be cut off."""
    console.print(Text(f"the script's traceback{where}", style="red"))
    console.print(Text(text.rstrip()), soft_wrap=True)


def sizes(log: Path) -> list[int]:
    """How many executors a run had, one number for every change."""
    found = [len(event["members"]) for event in read_events(log) if event["event"] == "generation"]
    return [size for i, size in enumerate(found) if not i or size != found[i - 1]]
