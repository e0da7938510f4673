"""`isoscale analyze`: the study of a cluster from its logs, as tables, `analysis.json`, pictures and a page."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from isoscale import limits
from isoscale.analysis.failures import CLASSES, FailureClass
from isoscale.analysis.study.analysis import Analysis, analyse, as_json
from isoscale.analysis.study.compare import compared, comparison_table
from isoscale.analysis.study.finding import Table
from isoscale.analysis.study.formats import FORMATS, Source, open_trace, sources
from isoscale.analysis.study.quotas import read_quotas, with_quotas
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.rules import read_rules, with_logs
from isoscale.analysis.study.trace import Trace
from isoscale.analysis.study.what_if import PRESENT
from isoscale.analysis.words import count
from isoscale.cli.numbers import in_range
from isoscale.errors import UserError

__all__ = ["analyze"]

Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE",
        help="Files of a trace, a run's DIR, the DIR of simulate; @2017-10 behind it takes a month. Several: compared.",
        show_default=False,
    ),
]
FormatName = Annotated[str, typer.Option("--format", help=f"auto, or one of {', '.join(FORMATS)}.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first malformed line; otherwise they are counted.")]
Out = Annotated[
    Path | None, typer.Option(help="Directory of the results.  \\[default: runs/analyze-TIME]", show_default=False)
]
Rules = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Failure classes of your own, in TOML, tried before ours.", show_default=False),
]
Logs = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Logs of failed attempts, JOB.ATTEMPT.log or JOB.log, to classify.", show_default=False
    ),
]
Quotas = Annotated[
    Path | None, typer.Option(metavar="FILE", help="CSV with tenant,devices: each tenant's share.", show_default=False)
]
Present = Annotated[
    str | None,
    typer.Option(
        help="The policy that the cluster has, as simulate names it.  "
        f"\\[default: that of a simulated log, else {PRESENT}]",
        show_default=False,
    ),
]
SimulateJobs = Annotated[
    int,
    typer.Option(help="Jobs to simulate, the busiest stretch; 0: none.", callback=in_range(limits.Range(0, 1_000_000))),
]
Seed = Annotated[int, typer.Option(help="Of what the simulation draws.", callback=in_range(limits.SEED))]
AsJson = Annotated[bool, typer.Option("--json", help="Print analysis.json; write no file.")]

_MOST_ROWS = 8
_MOST_MISSING = 6


def analyze(
    traces: Traces,
    format: FormatName = "auto",
    out: Out = None,
    strict: Strict = False,
    rules: Rules = None,
    logs: Logs = None,
    quotas: Quotas = None,
    present: Present = None,
    simulate_jobs: SimulateJobs = 3000,
    seed: Seed = 0,
    as_json_: AsJson = False,
) -> None:
    """Tell from a cluster's logs why jobs wait, why devices idle, why jobs fail, and what to change."""
    chosen = [source for text in traces for source in sources(text)]
    classes = read_rules(rules) if rules is not None else CLASSES
    shares = read_quotas(quotas) if quotas is not None else None
    directory = None if as_json_ else _claim(out)
    analyses: list[Analysis] = []
    with _progress(Console(stderr=True)) as report:
        for source in chosen:
            trace = _read(source, format, strict, classes, logs, shares, report)
            analyses.append(
                analyse(
                    trace,
                    classes=classes,
                    present=present,
                    simulate_jobs=simulate_jobs,
                    seed=seed,
                    on_progress=report,
                )
            )
    documents = _named(analyses)
    whole: dict[str, Any] = next(iter(documents.values())) if len(documents) == 1 else compared(documents)
    if directory is None:
        typer.echo(json.dumps(whole, allow_nan=False))
        return
    written = _write(directory, analyses, documents, whole)
    _show(analyses, documents)
    names = f"{directory}/{written[0]}, {', '.join(written[1:])}"
    Console(soft_wrap=True).print(f"\n{names}", style="dim", highlight=False, markup=False)


def _read(
    source: Source,
    format: str,
    strict: bool,
    classes: Sequence[FailureClass],
    logs: Path | None,
    shares: Mapping[str, float] | None,
    report: Any,
) -> Trace:
    reading = Reading(strict=strict, on_progress=report)
    trace = open_trace(source, reading, format)
    if logs is not None:
        trace = with_logs(trace, logs, classes, reading)
    return with_quotas(trace, shares) if shares is not None else trace


def _named(analyses: Sequence[Analysis]) -> dict[str, dict[str, Any]]:
    """By the trace's name; of two with the same name, the second has a number."""
    found: dict[str, dict[str, Any]] = {}
    for analysis in analyses:
        name = analysis.trace.name
        while name in found:
            name = f"{analysis.trace.name} ({len(found) + 1})"
        found[name] = as_json(analysis)
    return found


def _write(
    directory: Path, analyses: Sequence[Analysis], documents: Mapping[str, Mapping[str, Any]], whole: Mapping[str, Any]
) -> list[str]:
    # Drawing needs matplotlib, a page needs templates: both take a while to import.
    from isoscale.analysis.figures import render
    from isoscale.analysis.study.figures import FIGURES, draw
    from isoscale.analysis.study.page import study_page

    _write_bytes(directory / "analysis.json", (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
    pngs: dict[str, bytes] = {}
    for name in FIGURES:
        figure = draw(name, documents)
        if figure is not None:
            pngs[name] = render(figure)
            _write_bytes(directory / f"{name}.png", pngs[name])
    _write_bytes(directory / "analysis.html", study_page(analyses, documents, pngs).encode())
    return ["analysis.html", "analysis.json", *(f"{name}.png" for name in pngs)]


def _show(analyses: Sequence[Analysis], documents: Mapping[str, Mapping[str, Any]]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=120)
    if len(analyses) > 1:
        _show_table(console, comparison_table(documents), most=50)
        for analysis in analyses:
            _show_reading(console, analysis.trace)
    else:
        _show_one(console, analyses[0])


def _show_one(console: Console, analysis: Analysis) -> None:
    trace = analysis.trace
    _show_reading(console, trace)
    console.print("\n[bold]What to change[/]")
    _show_checks(console, analysis)
    for finding in analysis.findings:
        tables = [table for table in finding.tables if table.brief and table.rows]
        if not tables:
            continue
        console.print(Text.assemble(("\n" + finding.title, "bold"), "  ", _plain(finding.says)), highlight=False)
        for table in tables:
            _show_table(console, table, most=_MOST_ROWS)
    missing = list(analysis.missing.items())
    if missing:
        console.print("\n[bold]Missing[/]", highlight=False)
        for what, why in missing[:_MOST_MISSING]:
            console.print(_plain(f"  {what}: {why}"), style="dim", highlight=False)
        if len(missing) > _MOST_MISSING:
            console.print(f"  and {len(missing) - _MOST_MISSING} more, in analysis.json", style="dim", highlight=False)


def _show_reading(console: Console, trace: Trace) -> None:
    words = f"{trace.name}: {count(len(trace.jobs), 'job')}, format {trace.format}"
    console.print(_plain(words), highlight=False)
    account = trace.account
    if account.num_malformed:
        console.print(f"{count(account.num_malformed, 'malformed line')} left out; the first:", style="yellow")
        for one in account.first[:3]:
            console.print(_plain(f"  {one}"), style="yellow", highlight=False)


def _show_checks(console: Console, analysis: Analysis) -> None:
    for check in analysis.checks:
        if check.says.startswith("Not computed"):
            continue
        console.print(f"  [bold]{check.guideline}[/]", highlight=False)
        console.print(Padding(_plain(check.says), (0, 0, 0, 4)), highlight=False)
    absent = [check.guideline.lower() for check in analysis.checks if check.says.startswith("Not computed")]
    if absent:
        console.print(Padding(f"not computed: {'; '.join(absent)}", (0, 0, 0, 2)), style="dim", highlight=False)


def _show_table(console: Console, table: Table, *, most: int) -> None:
    kept = [i for i, name in enumerate(table.columns) if not table.narrow or name in table.narrow]
    shown = RichTable(
        box=None, pad_edge=False, header_style="dim", title=table.title, title_justify="left", title_style="dim italic"
    )
    for number, index in enumerate(kept):
        words = not number or table.columns[index] == "advice"
        shown.add_column(
            _plain(table.columns[index]), justify="left" if words else "right", no_wrap=table.columns[index] != "advice"
        )
    for row in table.rows[:most]:
        shown.add_row(*(_plain(str(row[index])) for index in kept))
    console.print(Padding(shown, (0, 0, 0, 2)))
    if len(table.rows) > most:
        console.print(f"  and {len(table.rows) - most} more on the page", style="dim", highlight=False)


def _plain(text: str) -> Text:
    """Text as it stands: names in a trace are neither markup nor commands to a terminal."""
    return Text("".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text))


@contextmanager
def _progress(console: Console) -> Iterator[Any]:
    """Gives a function that moves a bar for every file; quiet where nobody watches."""
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    tasks: dict[str, Any] = {}

    def report(name: str, done: int, total: int) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=total)
        bars.update(tasks[name], completed=done, total=total)

    with bars:
        yield report


def _claim(out: Path | None) -> Path:
    directory = out or Path("runs") / f"analyze-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "analysis.json.tmp").touch()
        (directory / "analysis.json.tmp").unlink()
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise UserError(field="--out", value=directory, problem=problem, remedy="give another one") from None
    return directory


def _write_bytes(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        problem = f"cannot be written ({error.strerror})"
        raise UserError(field="--out", value=path, problem=problem, remedy="give another DIR") from None
