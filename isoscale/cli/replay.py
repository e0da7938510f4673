"""`isoscale replay`: any step of a run again, in one process, held against the run's log."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from isoscale import limits
from isoscale.cli.numbers import in_range
from isoscale.errors import UserError
from isoscale.runtime.code.freezing import code_kept_for, what_changed
from isoscale.runtime.tools.replay import (
    ReplayResult,
    Request,
    RunLog,
    check_request,
    make_request,
    read_log,
    start_replay,
)

__all__ = ["replay"]

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run.", show_default=False)]
AtStep = Annotated[
    int,
    typer.Option(
        "--step",
        help="Replay up to this step, from the newest checkpoint before it.",
        show_default=False,
        callback=in_range(limits.STEPS),
    ),
]
Rank = Annotated[
    int | None,
    typer.Option(
        help="Stop in the debugger before the turn of this logical worker in that step.",
        show_default=False,
        callback=in_range(limits.LOGICAL_RANK),
    ),
]


def replay(directory: Directory, step: AtStep, logical_rank: Rank = None) -> None:
    """Train the run in DIR again, in one process, up to a step; exit 0 only if every loss on the way agrees."""
    log = read_log(directory)
    check_request(log, step, logical_rank)
    console = Console(soft_wrap=True)

    def warn(message: str) -> None:
        console.print(Text(f"warning: {message}", style="yellow"), highlight=False)

    kept = code_kept_for(directory)
    if kept is None:
        warn(f"the run has kept no code: {log.spec.script} is replayed as it is now")
    elif changed := what_changed(kept.manifest):
        warn(changed)
    request = make_request(directory, log, step, logical_rank, warn)
    steps = f"steps {request.start + 1} to {step}" if request.start + 1 < step else f"step {step}"
    begin = f", from the checkpoint of step {request.start}" if request.start else ""
    console.print(
        f"replaying {log.spec.script} with {log.spec.workers} logical workers in one process, {steps}{begin}",
        highlight=False,
        markup=False,
    )
    with tempfile.TemporaryDirectory(prefix="isoscale-replay-") as scratch:
        code = start_replay(Path(scratch), log, request, kept)
        path = Path(scratch) / "verdict.json"
        verdict = msgspec.json.decode(path.read_bytes(), type=ReplayResult) if path.exists() else None
    if verdict is None:
        if code in (130, -signal.SIGINT):
            raise typer.Exit(130)
        if code == 0:
            raise UserError(
                field="SCRIPT",
                value=log.spec.script,
                problem="ended without calling isoscale.run(train)",
                remedy="replay with the script that was run",
            )
        console.print(Text(f"isoscale: the replay ended with exit code {code} before it began", style="bold red"))
        raise typer.Exit(1)
    raise typer.Exit(_show(console, log, verdict, request))


def _show(console: Console, log: RunLog, verdict: ReplayResult, request: Request) -> int:
    step = request.step

    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), highlight=False)

    if verdict.values:
        values = "  ".join(f"{name} {value}" for name, value in verdict.values.items())
        line(f"logical worker {request.logical_rank} in step {step} logged  {values}")
    if verdict.digest is not None:
        same = verdict.digest.replayed == verdict.digest.logged
        line(
            f"digest after step {step}: {verdict.digest.replayed}, {'as' if same else 'not as'} logged"
            + ("" if same else f" ({verdict.digest.logged})")
        )
    if verdict.stopped == "interrupted":
        return 130
    if verdict.stopped not in ("", "debugger"):
        line(f"isoscale: the script failed in the replay after step {verdict.step}: {verdict.stopped}", "bold red")
        return 1
    if verdict.first_difference is not None:
        first = verdict.first_difference
        line(f"differs: the loss of step {first.step} is {first.replayed}, the log has {first.logged}", "bold red")
        return 1
    if not verdict.equal:
        line(f"differs: all {verdict.num_compared} losses are equal, the state after step {step} is not", "bold red")
        return 1
    if verdict.stopped == "debugger":
        line(f"left in the debugger after step {verdict.step}; all losses until there equal the log")
        return 0
    if verdict.step < step:
        line(f"differs: the replay ended after step {verdict.step}, the run went on to {log.last_step}", "bold red")
        return 1
    if not verdict.num_compared and verdict.digest is None:
        line(f"replayed, but the run's log has nothing to hold step {step} against", "bold yellow")
        return 1
    what = "" if verdict.digest is None else " and the digest"
    line(
        f"equal: {_losses(verdict)}{what} {'is that' if verdict.num_compared == 1 and not what else 'are those'} "
        f"of the run, bit for bit (loss of step {step}: {verdict.loss})",
        "bold green",
    )
    return 0


def _losses(verdict: ReplayResult) -> str:
    return "the loss" if verdict.num_compared == 1 else f"all {verdict.num_compared} losses"
