"""`isoscale profile`: throughput over executors and batch sizes, measured, as JSON, a picture and a table."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoscale import limits
from isoscale.cli import options as o
from isoscale.cli.devices import device_set
from isoscale.cli.job import claim_directory, job_spec
from isoscale.cli.numbers import in_range
from isoscale.cli.outcome import report_failure
from isoscale.cli.progress import Progress, QuietProgress
from isoscale.cli.screen import console_of_a_job
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet
from isoscale.protocol.files import write_json_atomic
from isoscale.runtime.code.freezing import freeze_anew
from isoscale.runtime.probes.steadiness import Spread, doubt
from isoscale.runtime.tools.profile import Point, ProfileFailedError, as_json, profile_batch, profile_live
from isoscale.types import JobSpec

__all__ = ["profile"]

Found = TypeVar("Found")

Executors = Annotated[
    int | None,
    typer.Option(
        help="Executors to begin with, 1 to N.  \\[default: N]",
        show_default=False,
        callback=in_range(limits.EXECUTORS),
    ),
]
Batches = Annotated[
    str | None,
    typer.Option(
        help="Batch sizes of a logical worker to measure, such as 16,32,64.  \\[default: the script's]",
        show_default=False,
    ),
]
Steps = Annotated[
    int,
    typer.Option(
        help="Steps of each point, 4 or more; the first few are not measured.",
        callback=in_range(limits.Range(4, limits.STEPS.most)),
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Directory of profile.json.  \\[default: runs/profile-SCRIPT-TIME]", show_default=False),
]


def profile(
    script: o.Script,
    workers: o.Workers,
    script_args: o.ScriptArgs = None,
    executors: Executors = None,
    devices: o.Devices = None,
    batches: Batches = None,
    steps: Steps = 20,
    determinism: o.Determinism = "elastic",
    kinds: o.Kinds = None,
    order: o.OrderOption = "ddp",
    seed: o.Seed = 0,
    threads: o.Threads = 1,
    out: Out = None,
) -> None:
    """Measure SCRIPT's throughput on E, E-1, ..., 1 executors and for several batch sizes, by scaling in as it runs."""
    sizes = _parse_batches(batches)
    found = device_set(executors if executors or devices else workers, devices, workers)
    spec = job_spec(
        script,
        script_args,
        workers=workers,
        devices=found,
        determinism=determinism,
        kinds=kinds,
        order=order,
        seed=seed,
        threads=threads,
        until=None,
        audit_every=0,
    )
    name = Path(script).stem
    directory = claim_directory(out or Path("runs") / f"profile-{name}-{time.strftime('%Y%m%d-%H%M%S')}", script)
    console = console_of_a_job()
    load = os.getloadavg()[0]
    points = _measure(console, spec, found, sizes, steps, directory)
    console.print(_table(points))
    spreads = {f"{_devices(point)} with batch {point.batch}": _spread(point) for point in points}
    if words := doubt(spreads, load, os.cpu_count() or 1):
        console.print(Text(words, style="yellow"), highlight=False, soft_wrap=True)
    shown = out or directory.relative_to(Path.cwd())
    (directory / "profile.png").write_bytes(_picture(workers, points, Path(script).name))
    for words, file in (("profile", "profile.json"), ("picture", "profile.png")):
        console.print(f"{words} {shown}/{file}", highlight=False, markup=False)


def _measure(
    console: Console, spec: JobSpec, devices: DeviceSet, sizes: Sequence[int], steps: int, directory: Path
) -> list[Point]:
    points: list[Point] = []
    code = freeze_anew(replace(spec, out=str(directory)))
    if len(sizes) > 1:
        live = profile_live(
            spec, devices, sizes, steps, directory / "runs", lambda words: QuietProgress(console, words), code
        )
        if (found := _done(live)) is not None:
            write_json_atomic(directory / "profile.json", as_json(spec.workers, found))
            return found
        console.print("the script declares no batch_sizes: one run for each", style="dim", highlight=False)
    for number, size in enumerate(sizes, 1):
        label = (f"batch {size} ({number} of {len(sizes)})" if len(sizes) > 1 else f"batch {size}") if size else ""

        def watch(words: str, label: str = label) -> Progress:
            return QuietProgress(console, "  ".join(part for part in (label, words) if part))

        home = directory / "runs" / (f"batch-{size}" if size else "script")
        points += _done(profile_batch(replace(spec, batch=size), devices, steps, home, watch, code))
        # After every batch size: what is measured stays, whatever happens to the next.
        write_json_atomic(directory / "profile.json", as_json(spec.workers, points))
    return points


def _done(measuring: Coroutine[Any, Any, Found]) -> Found:
    try:
        return asyncio.run(measuring)
    except ProfileFailedError as error:
        report_failure(error.result, error.logs.parent)
        raise typer.Exit(error.result.exit_code) from None


def _parse_batches(text: str | None) -> list[int]:
    """0 stands for the script's own."""
    if text is None:
        return [0]
    parts = [part.strip() for part in text.split(",", limits.MAX_BATCHES)]
    if len(parts) > limits.MAX_BATCHES:
        remedy = f"give at most {limits.MAX_BATCHES}"
        raise UserError(field="--batches", value=text, problem="too many sizes to measure", remedy=remedy)
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(field="--batches", value=text, problem="not a list of sizes", remedy="give, for example, 16,32")
    return list(dict.fromkeys(limits.whole(part, "--batches", limits.BATCH, part_of=text) for part in parts))


def _table(points: Sequence[Point]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("devices", no_wrap=True)
    table.add_column("split", no_wrap=True)
    for name in ("batch", "step ms", "spread", "exchange", "samples/s", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    slowest = {batch: _on_one(points, batch) for batch in {point.batch for point in points}}
    for i, point in enumerate(points):
        if i and points[i - 1].batch != point.batch:
            table.add_section()
        base = slowest[point.batch]
        table.add_row(
            _devices(point),
            "+".join(map(str, point.split)),
            str(point.batch),
            f"{1e3 * point.step_s:.1f}",
            str(_spread(point)),
            f"{1e3 * point.exchange_s:.1f}",
            f"{point.samples_per_s:,.0f}",
            f"{base.step_s / point.step_s:.2f}" if base is not None else "",
        )
    return table


def _devices(point: Point) -> str:
    return "+".join(f"{kind}*{number}" for kind, number in point.devices.items())


def _spread(point: Point) -> Spread:
    return Spread(point.low_s, point.step_s, point.high_s)


def _on_one(points: Sequence[Point], batch: int) -> Point | None:
    """What the speed-up is held against: the first kind alone."""
    return next((point for point in points if point.batch == batch and len(point.split) == 1), None)


def _picture(workers: int, points: Sequence[Point], name: str) -> bytes:
    from isoscale.analysis.figures import render
    from isoscale.analysis.profile_figure import draw_profile

    return render(draw_profile(as_json(workers, points), name))
