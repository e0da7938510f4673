"""`isoscale simulate`: a trace under several policies, in virtual time; a table, a picture, a page and the numbers."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from isoscale.analysis.simulation_rows import COLUMNS, cells, failures_line
from isoscale.analysis.simulation_values import PolicyRun, policy_run
from isoscale.cli import simulate_options as o
from isoscale.errors import UserError
from isoscale.scheduling.policy import Policy
from isoscale.scheduling.state import Objective
from isoscale.sim.engine import Options, Outcome
from isoscale.sim.job import SimJob
from isoscale.sim.recorder import FileRecorder, NullRecorder
from isoscale.sim.result import details, summarise, summary_json
from isoscale.sim.run import Experiment, parse_policies
from isoscale.sim.workload import Workload

__all__ = ["simulate"]


def simulate(
    trace: o.Trace,
    cluster: o.ClusterSpec,
    policy: o.Policies,
    out: o.Out = None,
    seeds: o.Seeds = 1,
    interval: o.Interval = None,
    costs: o.CostSpec = "stop-free",
    objective: Annotated[
        Objective,
        typer.Option(help="What policies that can choose aim at."),
    ] = "jct",
    world: o.World = None,
    speeds: o.Speeds = None,
    kind_speeds: o.KindSpeeds = None,
    batch: Annotated[
        Literal["adaptive", "fixed"], typer.Option(help="Whether the batch may be chosen where its range is known.")
    ] = "adaptive",
    profiled: o.Profiled = False,
    window: o.Window = None,
    drop_large: o.DropLarge = False,
    interference: o.InterferenceShare = 0.0,
    failures: o.Failures = None,
    serving: o.Serving = None,
    market: o.Market = None,
    quotas: o.Quotas = None,
    retry: o.Retry = "by-class",
    format: o.Format = "auto",
    seed: o.FirstSeed = 0,
    no_events: o.NoEvents = False,
) -> None:
    """Run the jobs of a trace on a cluster that need not exist, under one policy or several."""
    begin_s, end_s = o.window_of(window)
    workload = Workload(
        seed=seed,
        speeds=speeds,
        kind_speeds=o.kind_speeds_of(kind_speeds),
        adaptive=batch == "adaptive",
        profiled=profiled,
        drop_large=drop_large,
        begin_s=begin_s,
        end_s=end_s,
    )
    options = Options(
        costs=o.costs_of(costs),
        interval_s=interval,
        interference=o.interference_of(interference),
        failures=o.failures_of(failures),
        quotas=o.quotas_of(quotas),
        objective=objective,
        retry=o.retry_of(retry),
        seed=seed,
    )
    experiment = Experiment(
        trace=trace,
        cluster=cluster,
        format=format,
        workload=workload,
        options=options,
        serving=o.serving_of(serving),
        market=o.market_of(market, objective=objective, is_served=serving is not None),
        world=world or "",
    )
    policies = list(parse_policies(policy))
    jobs = [experiment.jobs(number) for number in range(seeds)]
    directory = _claim(out)
    facts = _facts(experiment, seeds)
    if any(job.crashes for job in jobs[0]):
        facts["failed trials"] = "retried by error class" if retry == "by-class" else f"retried: {retry}"
    runs = _run_all(experiment, policies, jobs, None if no_events else directory, directory, facts)
    _write(directory, runs, facts)
    _show(runs, directory)


def _run_all(
    experiment: Experiment,
    policies: Sequence[tuple[str, Callable[[], Policy]]],
    jobs: Sequence[Sequence[SimJob]],
    events: Path | None,
    directory: Path,
    facts: dict[str, str],
) -> list[PolicyRun]:
    console = Console(stderr=True)
    seeds = len(jobs)
    finished: list[PolicyRun] = []
    all_details = {}
    with _progress(console) as begin:
        for label, make in policies:
            outcomes: list[Outcome] = []
            for seed in range(seeds):
                name = label if seeds == 1 else f"{label}, seed {seed}"
                advance = begin(name, len(jobs[seed]))
                with _recorder(events, label, seed) as recorder:
                    outcomes.append(experiment.simulate(make(), jobs[seed], seed, recorder, advance))
                advance(len(jobs[seed]), 0.0)
            finished.append(policy_run(label, outcomes, oracle=make().oracle))
            all_details[label] = [
                {**summary_json(summarise(outcome)), **dataclasses.asdict(details(outcome))} for outcome in outcomes
            ]
    logs = [_file_name(label) for label, _ in policies] if events is not None else []
    _write_json(directory / "details.json", {"settings": facts, "logs": logs, "policies": all_details})
    return finished


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, int], Callable[[int, float], None]]]:
    """Gives a function that begins a bar, which gives one that moves it; quiet where nobody watches."""
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(24),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )

    def begin(name: str, total: int) -> Callable[[int, float], None]:
        task = bars.add_task(name, total=total)
        return lambda done, _: bars.update(task, completed=done)

    with bars:
        yield begin


def _recorder(events: Path | None, label: str, seed: int) -> FileRecorder | nullcontext[NullRecorder]:
    if events is None:
        return nullcontext(NullRecorder())
    directory = events / _file_name(label) / (f"seed-{seed}" if seed else "")
    directory.mkdir(parents=True, exist_ok=True)
    return FileRecorder(directory / "events.jsonl")


def _write(directory: Path, runs: Sequence[PolicyRun], facts: dict[str, str]) -> None:
    # Drawing needs matplotlib, a page needs templates: both take a while to import.
    from isoscale.analysis.figures import render
    from isoscale.analysis.simulation_figures import draw_overview
    from isoscale.analysis.simulation_page import simulation_page

    _write_json(directory / "summary.json", {run.policy: summary_json(run.summary) for run in runs})
    title = f"{facts['trace']} on {facts['cluster']}"
    subtitle = f"{runs[0].num_jobs:,} jobs, {runs[0].num_devices:,} devices; changes cost {facts['changes cost']}"
    (directory / "simulation.png").write_bytes(render(draw_overview(runs, title, subtitle)))
    (directory / "simulation.html").write_text(simulation_page(runs, title, facts), encoding="utf-8")


def _show(runs: Sequence[PolicyRun], directory: Path) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=200)
    headings, rows = list(COLUMNS), [cells(run) for run in runs]
    # Where the lines would not fit, policies become columns.
    if sum(max(len(row[i]) for row in [headings, *rows]) + 2 for i in range(len(headings))) > console.width:
        headings, *rows = [list(line) for line in zip(headings, *rows, strict=True)]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for run in runs:
        if run.details.failures:
            console.print(f"{run.policy}: {failures_line(run.details)}", highlight=False)
        if run.details.dollars:
            paid, each = run.details.dollars, run.details.dollars_per_job
            console.print(f"{run.policy}: ${paid:,.2f} for devices, ${each:,.2f} a job", highlight=False)
        left = run.num_jobs - run.summary.jobs_finished
        if left > 0:
            console.print(f"{run.policy}: {left:,.0f} jobs did not finish", style="yellow", highlight=False)
    console.print(f"\n{directory}/summary.json, simulation.png, simulation.html", style="dim", highlight=False)


def _facts(experiment: Experiment, seeds: int) -> dict[str, str]:
    options, workload = experiment.options, experiment.workload
    name = Path(experiment.trace).name if "/" in experiment.trace else experiment.trace
    interval = "the policy's own" if options.interval_s is None else f"{options.interval_s:g} s"
    found = {
        "trace": name,
        "cluster": experiment.cluster if len(experiment.cluster) < 60 else Path(experiment.cluster).name,
        "changes cost": options.costs.in_words(),
        "interval of decisions": interval,
        "objective": options.objective,
        "seeds": str(seeds),
        "batch": "may be chosen where its range is known" if workload.adaptive else "the owner's",
        "speeds known": "exactly" if workload.profiled else "declared, then learned where jobs run",
    }
    if experiment.world:
        found["world"] = experiment.world
    interference = experiment.interference()
    if interference.matters:
        found["interference"] = interference.in_words()
    if options.failures:
        found["failures"] = (
            f"a device every {options.failures.mean_s / 3600:g} h, {options.failures.repair_s:g} s to repair"
        )
    if experiment.serving:
        load = experiment.serving
        found["serving"] = f"needs {load.low:.0%} to {load.high:.0%} of the cluster over the day, lends the rest"
    if experiment.market:
        prices = ", ".join(f"{kind} ${price:g}" for kind, price in experiment.market.on_demand.items())
        found["market"] = f"spot, on demand {prices} an hour; {experiment.market.notice_s:g} s of notice"
    return found


def _claim(out: Path | None) -> Path:
    directory = out or Path("runs") / f"simulate-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "summary.json.tmp").touch()
        (directory / "summary.json.tmp").unlink()
    except OSError as error:
        raise UserError(
            field="--out", value=directory, problem=f"cannot be written ({error.strerror})", remedy="give another one"
        ) from None
    return directory


def _write_json(path: Path, value: object) -> None:
    temporary = path.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def _file_name(label: str) -> str:
    return re.sub(r"[^\w.-]+", "_", label).strip("_")
