"""Options of `isoscale simulate`, checked into values. Every mistake is one line that names the option."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from isoscale import limits
from isoscale.analysis.failures import should_retry
from isoscale.cli.numbers import in_range
from isoscale.errors import UserError
from isoscale.sim.costs import Costs, parse_costs
from isoscale.sim.disturbances import DeviceFailures, ServingLoad
from isoscale.sim.interference import Interference
from isoscale.sim.market import SpotMarket, parse_market

__all__ = [
    "ClusterSpec",
    "CostSpec",
    "DropLarge",
    "Failures",
    "FirstSeed",
    "Format",
    "InterferenceShare",
    "Interval",
    "KindSpeeds",
    "Market",
    "NoEvents",
    "Out",
    "Policies",
    "Profiled",
    "Quotas",
    "Retry",
    "Seeds",
    "Serving",
    "Speeds",
    "Trace",
    "Window",
    "World",
    "costs_of",
    "failures_of",
    "interference_of",
    "kind_speeds_of",
    "market_of",
    "quotas_of",
    "retry_of",
    "serving_of",
    "window_of",
]

Trace = Annotated[
    str,
    typer.Option(help="A file, a shipped trace (easyscale), or a generator (philly:jobs=500).", show_default=False),
]
ClusterSpec = Annotated[
    str,
    typer.Option("--cluster", help='"V100*32+T4*16" (flat pools), "16x(T4*4)" (nodes), or a file.', show_default=False),
]
Policies = Annotated[
    str,
    typer.Option(
        "--policy",
        help="Policies by name or MODULE:CLASS, A,B,C; options in brackets, A(x=1).",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Directory of the results.  \\[default: runs/simulate-TIME]", show_default=False)
]
Seeds = Annotated[
    int, typer.Option(help="Repeat with so many seeds; results are means.", callback=in_range(limits.SEEDS))
]
Interval = Annotated[
    float | None,
    typer.Option(
        help="Seconds between decisions; 0: at every event.  \\[default: each policy's own]",
        show_default=False,
        callback=in_range(limits.INTERVAL_S),
    ),
]
CostSpec = Annotated[
    str, typer.Option("--costs", help="free, stop-free or stop-resume; changed as in free:start_s=20.")
]
World = Annotated[
    str | None,
    typer.Option(
        help="Who says how fast jobs really are: mixed, or MODULE:CLASS of your own; options in brackets.",
        show_default=False,
    ),
]
Speeds = Annotated[
    Path | None,
    typer.Option(help="Measured speeds: Pollux's or ElasticFlow's directory, Gavel's JSON.", show_default=False),
]
KindSpeeds = Annotated[
    str | None, typer.Option(help="Relative speed by kind, such as V100=2,T4=1.", show_default=False)
]
Profiled = Annotated[bool, typer.Option("--profiled", help="Policies know exact speeds from the start.")]
Window = Annotated[
    str | None, typer.Option(help="Only jobs submitted from BEGIN:END hours of the trace.", show_default=False)
]
DropLarge = Annotated[
    bool, typer.Option("--drop-large", help="Leave out jobs that ask for more devices than the cluster has.")
]
InterferenceShare = Annotated[
    float,
    typer.Option(
        "--interference",
        help="Speed that a job loses beside another one on its node, 0 to 1.",
        callback=in_range(limits.SHARE),
    ),
]
Failures = Annotated[
    str | None, typer.Option(help="HOURS between failures of a device, /HOURS to repair (1).", show_default=False)
]
Serving = Annotated[
    str | None,
    typer.Option(
        help="LOW-HIGH share of the cluster that serving needs over a day; it lends the rest.", show_default=False
    ),
]
Market = Annotated[
    str | None,
    typer.Option(
        help="Rent devices at prices that change: on-demand dollars an hour by kind, such as V100=2.5,T4=0.5.",
        show_default=False,
    ),
]
Quotas = Annotated[
    str | None, typer.Option(help="Devices that a tenant may hold, such as team-a=8,team-b=4.", show_default=False)
]
Retry = Annotated[
    str, typer.Option(help="Trials that fail in the trace: by-class (see docs), never, or a number of retries for all.")
]
Format = Annotated[str, typer.Option(help="Format of the trace's file, where it cannot be told from its header.")]
FirstSeed = Annotated[int, typer.Option("--seed", help="First seed.", callback=in_range(limits.SEED))]
NoEvents = Annotated[bool, typer.Option("--no-events", help="Do not write DIR/POLICY/events.jsonl.")]


def costs_of(text: str) -> Costs:
    return parse_costs(text)


def window_of(text: str | None) -> tuple[float, float]:
    if text is None:
        return 0.0, math.inf
    begin, colon, end = text.partition(":")
    first = limits.decimal(begin or "0", "--window", limits.HOURS, part_of=text)
    last = limits.decimal(end, "--window", limits.HOURS, part_of=text) if end else math.inf
    if not colon or first >= last:
        problem = "ends before it begins" if colon else "is not BEGIN:END"
        raise UserError(field="--window", value=text, problem=problem, remedy="give hours, such as 0:48")
    return first * 3600.0, last * 3600.0


def kind_speeds_of(text: str | None, *, field: str = "--kind-speeds") -> dict[str, float]:
    """`V100=2,T4=1` as a mapping of positive numbers."""
    found: dict[str, float] = {}
    for part in filter(None, (text or "").split(",")):
        kind, equals, value = part.partition("=")
        if not equals or not kind.strip():
            raise UserError(field=field, value=text, problem=f"{part!r} is not KIND=SPEED", remedy="give V100=2,T4=1")
        found[kind.strip()] = limits.decimal(value, field, limits.SPEED, part_of=part)
    return found


def interference_of(share: float) -> Interference:
    if not 0 <= share < 1:
        raise UserError(field="--interference", value=share, problem="is no share", remedy="give 0 up to below 1")
    return Interference(share=share)


def failures_of(text: str | None) -> DeviceFailures | None:
    if text is None:
        return None
    between, _, repair = text.partition("/")
    return DeviceFailures(
        mean_s=3600.0 * limits.decimal(between, "--failures", limits.OFTEN_HOURS, part_of=text),
        repair_s=3600.0 * limits.decimal(repair or "1", "--failures", limits.OFTEN_HOURS, part_of=text),
    )


def serving_of(text: str | None) -> ServingLoad | None:
    if text is None:
        return None
    low, _, high = text.partition("-")
    least = limits.decimal(low, "--serving", limits.SHARE, part_of=text)
    most = limits.decimal(high, "--serving", limits.SHARE, part_of=text)
    if not least <= most:
        raise UserError(field="--serving", value=text, problem="is not LOW-HIGH", remedy="give shares, such as 0.2-0.7")
    return ServingLoad(low=least, high=most)


def market_of(text: str | None, *, objective: str, is_served: bool) -> SpotMarket | None:
    if text is not None and is_served:
        raise UserError(field="--market", value=text, problem="--serving lends devices, too", remedy="give one of them")
    if text is None and objective == "cost":
        raise UserError(
            field="--objective", value=objective, problem="nothing has a price", remedy="give --market KIND=DOLLARS"
        )
    return None if text is None else parse_market(text)


def quotas_of(text: str | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in filter(None, (text or "").split(",")):
        tenant, equals, value = part.partition("=")
        if not equals or not limits.is_whole(value.strip()):
            raise UserError(field="--quotas", value=part, problem="is not TENANT=DEVICES", remedy="give team-a=8")
        within = limits.Range(0, limits.CLUSTER_DEVICES.most)
        found[tenant.strip()] = limits.whole(value.strip(), "--quotas", within, part_of=part)
    return found


def retry_of(text: str) -> Callable[[str, int], bool]:
    """(error class, failures so far) -> whether to try again."""
    if text == "by-class":
        return should_retry
    if text != "never" and not (text.isascii() and text.isdigit()):
        raise UserError(
            field="--retry", value=text, problem="is no rule for retries", remedy="give by-class, never or a number"
        )
    most = 0 if text == "never" else limits.whole(text, "--retry", limits.RETRIES)
    return lambda error, num_failures: num_failures <= most
