"""`isoscale check`: may this job mix kinds, and what does it cost? Short real runs, then a verdict."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoscale import limits
from isoscale.cli import options as o
from isoscale.cli.job import job_spec
from isoscale.cli.numbers import in_range
from isoscale.cli.outcome import report_failure
from isoscale.cli.progress import Progress, QuietProgress
from isoscale.cli.screen import console_of_a_job
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet, check_kind, parse_kinds
from isoscale.runtime.probes.steadiness import Spread, doubt
from isoscale.runtime.probes.verdict import Report
from isoscale.runtime.tools.check import CheckFailedError, Plan, check_job, default_kinds
from isoscale.types import JobSpec

__all__ = ["check"]

_DEPENDS = {"yes": "[red]yes[/]", "no": "[green]no[/]", "unknown": "[yellow]unknown[/]"}

Kinds = Annotated[
    str | None,
    typer.Option(help="Kinds to compare.  \\[default: cpu-avx2,cpu-sse as far as this host can]", show_default=False),
]
Steps = Annotated[
    int,
    typer.Option(
        help="Steps of each run, 2 or more; all but the first two are timed.",
        callback=in_range(limits.Range(2, limits.STEPS.most)),
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")]
Out = Annotated[Path | None, typer.Option(help="Directory to write check.json to.", show_default=False)]


def check(
    script: o.Script,
    workers: o.Workers,
    script_args: o.ScriptArgs = None,
    kinds: Kinds = None,
    seed: o.Seed = 0,
    threads: o.Threads = 1,
    steps: Steps = 6,
    json: AsJson = False,
    out: Out = None,
) -> None:
    """Find out by short runs whether SCRIPT gives the same bits on different kinds, and what that costs."""
    declared = parse_kinds(kinds) if kinds is not None else default_kinds()
    for kind in declared:
        check_kind(kind, field="--kinds")
    spec = job_spec(
        script,
        script_args,
        workers=workers,
        devices=DeviceSet(((declared[0], 1),)),
        determinism="heterogeneous",
        kinds=",".join(declared),
        order="ddp",
        seed=seed,
        threads=threads,
        until=steps,
    )
    if out is not None:
        _claim(out)
    # Progress is not part of the answer.
    progress = console_of_a_job(stderr=True)
    load = os.getloadavg()[0]
    report = _run(spec, progress)
    text = msgspec.json.format(msgspec.json.encode(report), indent=1).decode()
    if out is not None:
        temporary = out / "check.json.tmp"
        temporary.write_text(text + "\n")
        temporary.replace(out / "check.json")
    if json:
        print(text)
    else:
        _show(Console(), report)
        timed = {f"{run.level} on {run.kind}": run.time for run in report.runs if run.time.steps}
        spreads = {name: Spread(time.low_s, time.median_s, time.high_s) for name, time in timed.items()}
        if words := doubt(spreads, load, os.cpu_count() or 1):
            _say(Console(), f"The step times are {words}.", "yellow")


def _run(spec: JobSpec, console: Console) -> Report:
    def watch(one: Plan, number: int, count: int) -> Progress:
        return QuietProgress(console, f"run {number} of {count}: {one}")

    try:
        return asyncio.run(check_job(spec, watch))
    except CheckFailedError as error:
        result = replace(error.result, error=str(error))
        report_failure(result, None)
        raise typer.Exit(result.exit_code) from None


def _claim(out: Path) -> None:
    """Before anything runs: a directory that can be written to."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "check.json.tmp").touch()
        (out / "check.json.tmp").unlink()
    except OSError as error:
        raise UserError(
            field="--out", value=out, problem=f"cannot be written ({error.strerror})", remedy="give another directory"
        ) from None


def _show(console: Console, report: Report) -> None:
    _show_factors(console, report)
    _show_modules(console, report)
    for hidden in report.hidden_state:
        _say(console, f"state outside buffers: {hidden.where} holds {hidden.holds}; all logical workers share it")
    for name in report.nondeterministic:
        _say(console, f"no deterministic form: torch cannot run {name} deterministically")
    _show_runs(console, report)
    verdict = report.verdict
    good = verdict.mix_at_elastic or verdict.mix_at_heterogeneous
    _say(console, f"\n{verdict.sentence}", "bold green" if good else "bold red")
    _say(
        console,
        f"Measured in {report.steps} steps on this host, in runs that followed one another.{_noise(report)}",
        "dim",
    )


def _noise(report: Report) -> str:
    """A kind whose own profile is the common one did the same twice."""
    own = {run.kind for run in report.runs if run.level == "elastic" and run.profile == report.common_profile}
    ratios = report.cost.heterogeneous_over_elastic
    same = next(((kind, ratios[kind]) for kind in ratios if kind in own and ratios[kind]), None)
    return f" {same[0]} computed alike at both levels, so its ratio of {same[1]:.2f} is noise." if same else ""


def _show_factors(console: Console, report: Report) -> None:
    table = _table("factor in force")
    for kind in report.factors:
        table.add_column(kind, overflow="fold", max_width=44)
    names = next(iter(report.factors.values()), {})
    for name in names:
        values = [factors[name] for factors in report.factors.values()]
        if any(values):
            shown = values if len(set(values)) > 1 else [values[0], *[""] * (len(values) - 1)]
            table.add_row(name, *shown)
    if report.fingerprints:
        table.add_row("fingerprint", *(value[:12] for value in report.fingerprints.values()))
    console.print(table)
    if report.differing_kernels:
        _say(console, f"kernels of the fingerprint that differ: {', '.join(report.differing_kernels)}")


def _show_modules(console: Console, report: Report) -> None:
    table = _table("module")
    table.add_column("count", justify="right")
    table.add_column("parameters", justify="right")
    table.add_column("bits depend on the kind")
    for row in report.modules:
        table.add_row(row.type, str(row.count), f"{row.parameters:,}", _DEPENDS.get(row.depends, row.depends))
    console.print()
    console.print(table)


def _show_runs(console: Console, report: Report) -> None:
    table = _table("run")
    for column in ("profile", "digest"):
        table.add_column(column, no_wrap=True)
    table.add_column("ms a step", justify="right")
    table.add_column("spread", justify="right")
    for run in report.runs:
        time = run.time
        timed = f"{time.median_s * 1e3:.1f}", f"{time.fastest_s * 1e3:.1f} to {time.slowest_s * 1e3:.1f}"
        shown = timed if time.steps else ("", "")
        table.add_row(f"{run.level} on {run.kind}", run.profile, run.digest[:12] or "failed", *shown)
    console.print()
    console.print(table)


def _table(first: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, no_wrap=True)
    return table


def _say(console: Console, text: str, style: str = "") -> None:
    # Wrapped at words for a reader, one line for a file.
    console.print(Text(text, style=style), highlight=False, soft_wrap=not console.is_terminal)
