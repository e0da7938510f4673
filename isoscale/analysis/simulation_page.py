"""Simulated policies on one HTML page (`templates/simulation.html`) that needs nothing else: no script, no network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isoscale.analysis.figures import render
from isoscale.analysis.simulation_figures import draw_cdf, draw_gantt, draw_utilisation
from isoscale.analysis.simulation_rows import COLUMNS, cells, failures_line
from isoscale.analysis.simulation_values import PolicyRun
from isoscale.analysis.words import count
from isoscale.pages import Image, environment

__all__ = ["simulation_page"]

#: columns in which the smallest, and in which the largest number is best
_LOW, _HIGH = frozenset({1, 2, 3, 4, 5, 9, 10}), frozenset({6, 7, 11})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """Trials of one policy that failed: in words, and numbers by error class."""

    policy: str
    words: str
    classes: Sequence[tuple[str, Sequence[int]]]


def simulation_page(runs: Sequence[PolicyRun], title: str, facts: Mapping[str, str]) -> str:
    longest = max(run.edges[-1] for run in runs)
    first = runs[0]
    return (
        environment("isoscale.analysis")
        .get_template("simulation.html")
        .render(
            title=title,
            about=f"{count(first.num_jobs, 'job')} on {count(first.num_devices, 'device')}, in virtual time.",
            columns=list(COLUMNS.items()),
            rows=_rows(runs),
            completion=Image(png=render(draw_cdf(runs)), words="share of jobs done within a time"),
            devices=Image(png=render(draw_utilisation(runs)), words="devices held and computing over time"),
            gantts=[(run.policy, _gantt(run, longest)) for run in runs if run.rows],
            failures=_failures(runs),
            facts=list(facts.items()),
        )
    )


def _gantt(run: PolicyRun, longest: float) -> Image:
    return Image(png=render(draw_gantt(run, longest)), words=f"jobs under {run.policy}")


def _failures(runs: Sequence[PolicyRun]) -> list[_Failed]:
    """One for every policy; none if nothing failed under any."""
    if not any(run.details.failures for run in runs):
        return []
    return [
        _Failed(policy=run.policy, words=failures_line(run.details), classes=list(run.details.failures.items()))
        for run in runs
    ]


def _rows(runs: Sequence[PolicyRun]) -> list[list[tuple[str, bool]]]:
    """Of every policy the texts of its columns, and whether no other is better."""
    numbers = [_numbers(run) for run in runs]
    best: dict[int, float] = {}
    if len(runs) > 1:
        for column in range(len(COLUMNS)):
            known = [row[column] for row in numbers if not math.isnan(row[column])]
            if known and len(set(known)) > 1 and column in _LOW | _HIGH:
                best[column] = min(known) if column in _LOW else max(known)
    return [
        [(text, i in best and row[i] == best[i]) for i, text in enumerate(cells(run))]
        for run, row in zip(runs, numbers, strict=True)
    ]


def _numbers(run: PolicyRun) -> list[float]:
    summary = run.summary
    return [
        math.nan,
        summary.mean_jct_s,
        summary.p50_jct_s,
        summary.p99_jct_s,
        summary.makespan_s,
        summary.mean_queue_s,
        summary.allocated_utilisation,
        summary.busy_utilisation,
        summary.rescales,
        run.details.unfairness_p99,
        summary.decision_ms_p50,
        summary.jobs_finished,
    ]
