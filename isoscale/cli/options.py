"""Options that several commands share, as Typer reads them. What they mean together: `devices`, `job`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from isoscale import limits
from isoscale.cli.numbers import in_range
from isoscale.cli.scripts import own_help, resolved

__all__ = [
    "JOB",
    "RUNNING",
    "BatchPlan",
    "Determinism",
    "Devices",
    "Executors",
    "Kinds",
    "MeasureNoise",
    "Module",
    "NewCode",
    "NoWarm",
    "OrderOption",
    "Out",
    "Plan",
    "Script",
    "ScriptArgs",
    "Seed",
    "Threads",
    "Until",
    "Workers",
]

Script = Annotated[
    str,
    typer.Argument(
        metavar="SCRIPT",
        help="Training script that ends with isoscale.run(train), or recipe:NAME.",
        show_default=False,
        callback=resolved,
    ),
]
Module = Annotated[
    bool,
    typer.Option(
        "--module", "-m", help="SCRIPT is the name of a module, as after python -m.", rich_help_panel="Options"
    ),
]
ScriptArgs = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGS", help="Arguments for the script, after --.", show_default=False, callback=own_help),
]
#: parts of a help text
JOB, RUNNING = "The job: other values give other results", "How it is run"

Workers = Annotated[
    int,
    typer.Option(
        help="Logical workers N: the job's identity, constant for its life.",
        rich_help_panel=JOB,
        callback=in_range(limits.LOGICAL_WORKERS),
    ),
]
Executors = Annotated[
    int | None,
    typer.Option(
        help="Executor processes E, 1 to N.  \\[default: 1]",
        show_default=False,
        rich_help_panel=RUNNING,
        callback=in_range(limits.EXECUTORS),
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(help='Executors by kind, such as "cpu*2+cpu-sse*1".', show_default=False, rich_help_panel=RUNNING),
]
Determinism = Annotated[
    Literal["off", "elastic", "heterogeneous"],
    typer.Option(
        metavar="LEVEL",
        help="off; elastic: same bits on any number of one kind; heterogeneous: on mixed kinds too.",
        rich_help_panel=JOB,
    ),
]
Kinds = Annotated[
    str | None,
    typer.Option(
        help="Every kind the job may ever meet, such as cpu-avx2,cpu-sse.  \\[default: those in --devices]",
        show_default=False,
        rich_help_panel=JOB,
    ),
]
OrderOption = Annotated[
    Literal["ddp", "tree"],
    typer.Option("--order", help="Order of gradient sums: stock DDP's, or a faster fixed tree.", rich_help_panel=JOB),
]
Seed = Annotated[
    int,
    typer.Option(
        help="Seeds set-up; logical worker r gets seed + r.", rich_help_panel=JOB, callback=in_range(limits.SEED)
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        help="Intra-op threads per executor; part of the job's identity.",
        rich_help_panel=JOB,
        callback=in_range(limits.THREADS),
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Directory of the run.  \\[default: runs/SCRIPT-TIME]", show_default=False, rich_help_panel=RUNNING
    ),
]
Plan = Annotated[
    str | None,
    typer.Option(
        help='Executors (or devices) by committed step, such as "0:2,40:4,80:1".',
        show_default=False,
        rich_help_panel=RUNNING,
    ),
]
BatchPlan = Annotated[
    str | None,
    typer.Option(
        "--batch-plan",
        help='Batch size of each logical worker by committed step, such as "0:32,400:64".',
        show_default=False,
        rich_help_panel=JOB,
    ),
]
MeasureNoise = Annotated[
    int,
    typer.Option(
        "--measure-noise",
        metavar="K",
        help="Estimate the gradient noise scale every K steps; 0: never.",
        rich_help_panel=RUNNING,
        callback=in_range(limits.STEP),
    ),
]
Until = Annotated[
    int | None,
    typer.Option(
        help="Stop when this many steps are committed.",
        show_default=False,
        rich_help_panel=JOB,
        callback=in_range(limits.STEPS),
    ),
]

NewCode = Annotated[
    bool,
    typer.Option(
        "--new-code",
        help="Go on with the script and its modules as they are now, not as the run began.",
        rich_help_panel=RUNNING,
    ),
]

NoWarm = Annotated[
    bool,
    typer.Option(
        "--no-warm",
        help="Start every executor afresh, instead of forking it from a process that has imported torch.",
        rich_help_panel=RUNNING,
    ),
]
