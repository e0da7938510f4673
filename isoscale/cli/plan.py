"""`isoscale plan`: how one job spreads over unequal devices, and what more devices would give it. Pure arithmetic."""

from __future__ import annotations

import json as json_module
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from isoscale import limits
from isoscale.cli.numbers import in_range
from isoscale.cli.simulate_options import kind_speeds_of
from isoscale.errors import UserError
from isoscale.protocol.files import read_small_json
from isoscale.scheduling.batch_choice import choice_of, options_of
from isoscale.scheduling.planner import PlanFigures, best_split, best_use, plan_figures, split_seconds
from isoscale.sim.cluster_spec import parse_devices

__all__ = ["plan"]

plan = typer.Typer(no_args_is_help=True, help="Plan one job's devices and batch size.")

Workers = Annotated[
    int, typer.Option(help="Logical workers N.", show_default=False, callback=in_range(limits.LOGICAL_WORKERS))
]
Devices = Annotated[str, typer.Option(help='Devices by kind, such as "V100*2+T4*3".', show_default=False)]
Speeds = Annotated[
    str, typer.Option(help="Turns per second of one device by kind, such as V100=2,T4=1.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
More = Annotated[
    str | None,
    typer.Option(
        help='What could be added, such as "V100*2+T4*2".  \\[default: --by of each kind]', show_default=False
    ),
]
By = Annotated[int, typer.Option(help="How many devices to add.", callback=in_range(limits.ADDED))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One way to grow: devices added, and the job's figures with them."""

    added: tuple[tuple[str, int], ...]
    figures: PlanFigures
    speedup: float

    @property
    def per_device(self) -> float:
        """What EasyScale ranks proposals by: speed-up gained per device added."""
        return (self.speedup - 1.0) / sum(count for _, count in self.added)


@plan.command()
def split(workers: Workers, devices: Devices, speeds: Speeds, json: AsJson = False) -> None:
    """Spread N logical workers over unequal devices so that a step is as short as possible.

    A device that would keep the others waiting with a single logical worker is left unused.
    """
    kinds = _kinds(parse_devices(devices))
    if len(kinds) > workers:
        raise UserError(
            field="--devices",
            value=devices,
            problem=f"{len(kinds)} devices for {workers} logical workers: some would have nothing to do",
            remedy=f"give {workers} devices or fewer",
        )
    turns = _turns(kinds, speeds)
    shares = best_use(workers, turns)
    figures = plan_figures(workers, shares, turns)
    unused = Counter(kind for kind, share in zip(kinds, shares, strict=True) if not share)
    speedup = split_seconds(best_split(workers, turns), turns) / figures.step_s
    if json:
        note = {"unused": dict(unused), "speedup": round(speedup, 12)} if unused else {}
        print(json_module.dumps({"split": list(shares), **_json(figures), **note}))
        return
    console = Console(highlight=False)
    table = _table("device", "logical workers", "busy")
    for kind, share, turn in zip(kinds, shares, turns, strict=True):
        table.add_row(kind, str(share), f"{share * turn / figures.step_s:.0%}")
    console.print(table)
    console.print(
        f"\nA step takes {figures.step_s:.4g} s without exchanges: {figures.perf:.4g} turns per second of "
        f"{figures.perf + figures.waste:.4g} possible ({figures.waste_share:.1%} wasted)."
    )
    if unused:
        left = " and ".join(kind if count == 1 else f"{kind}*{count}" for kind, count in unused.items())
        console.print(f"leave {left} unused: {speedup:.2f}x faster without {'it' if unused.total() == 1 else 'them'}")


@plan.command()
def grow(
    workers: Workers, devices: Devices, speeds: Speeds, by: By = 2, more: More = None, json: AsJson = False
) -> None:
    """What would two more devices give this job? Ways to grow, the best first."""
    held = parse_devices(devices)
    rates = kind_speeds_of(speeds, field="--speeds")
    room = dict(parse_devices(more, field="--more")) if more else dict.fromkeys(rates, by)
    for kind in room:
        if kind not in rates:
            raise UserError(
                field="--more",
                value=more,
                problem=f"no speed is given for {kind}",
                remedy=f"add {kind}=... to --speeds",
            )
    _check_ways(room, by, sum(count for _, count in held))
    now = _figures(_kinds(held), workers, speeds)
    ways = sorted(
        (_growth(held, added, workers, speeds, now) for added in _additions(list(room.items()), by) if added),
        key=lambda way: (-way.speedup, sum(count for _, count in way.added), way.figures.waste, way.added),
    )
    if json:
        print(
            json_module.dumps(
                {
                    "now": _json(now),
                    "grow": [
                        {
                            "add": dict(way.added),
                            "speedup": way.speedup,
                            "speedup_per_device": way.per_device,
                            **_json(way.figures),
                        }
                        for way in ways
                    ],
                }
            )
        )
        return
    _show(now, ways)


@plan.command()
def batch(
    profile: Annotated[Path, typer.Argument(help="profile.json of isoscale profile.", show_default=False)],
    devices: Annotated[str, typer.Option(help='The most that the job may have, such as "cpu*4".', show_default=False)],
    noise_scale: Annotated[
        float | None,
        typer.Option(
            help="Gradient noise scale in samples (--measure-noise): weighs samples by what they are worth.",
            show_default=False,
            callback=in_range(limits.Range(0.0, limits.MAX_NUMBER)),
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Devices and batch size for one job: the autoscaler's choice from its profile, and the price of others."""
    found = parse_devices(devices)
    if len(found) != 1:
        problem, remedy = "several kinds", "give one kind; isoscale plan split spreads a job over several"
        raise UserError(field="--devices", value=devices, problem=problem, remedy=remedy)
    [(kind, most)] = found
    options = options_of(_read_profile(profile), kind, most, noise_scale)
    best = choice_of(options, most)
    if json:
        print(json_module.dumps({"choice": asdict(best), "options": [asdict(one) for one in options]}))
        return
    console = Console(highlight=False)
    table = _table("devices", "batch", "samples/s", "scaling factor", "price")
    for one in options:
        mark = " <" if one is best else ""
        price = f"{1 - one.factor / best.factor:.1%}{mark}"
        table.add_row(f"{kind}*{one.devices}", str(one.batch), f"{one.samples_per_s:,.0f}", f"{one.factor:.2f}", price)
    console.print(table)
    worth = "" if noise_scale is None else f", samples weighed for a noise scale of {noise_scale:g}"
    console.print(f"\n{kind}*{best.devices} with batch size {best.batch}: {best.factor:.2f} times one {kind}{worth}.")


def _read_profile(path: Path) -> Mapping[str, Any]:
    try:
        found = read_small_json(path)
    except (OSError, ValueError) as error:
        problem, remedy = f"cannot be read ({error})", "give the profile.json of isoscale profile"
        raise UserError(field="PROFILE", value=path, problem=problem, remedy=remedy) from None
    if not isinstance(found, dict):
        problem, remedy = "is not a profile", "give the profile.json of isoscale profile"
        raise UserError(field="PROFILE", value=path, problem=problem, remedy=remedy)
    return found


def _show(now: PlanFigures, ways: Sequence[Growth]) -> None:
    console = Console(highlight=False)
    table = _table("add", "step", "speed-up", "per device", "wasted")
    table.add_row("nothing", f"{now.step_s:.4g} s", "1.00x", "", f"{now.waste_share:.1%}")
    for way in ways:
        table.add_row(
            "+".join(f"{kind}*{count}" for kind, count in way.added),
            f"{way.figures.step_s:.4g} s",
            f"{way.speedup:.2f}x",
            f"{way.per_device:+.2f}",
            f"{way.figures.waste_share:.1%}",
        )
    console.print(table)
    useful = [way for way in ways if way.speedup > 1 + 1e-9]
    if not ways:
        console.print("\nEvery device already hosts a single logical worker: there is nothing to spread further.")
    elif not useful:
        console.print("\nNone of these would make a step shorter.")


def _growth(
    held: tuple[tuple[str, int], ...],
    added: tuple[tuple[str, int], ...],
    workers: int,
    speeds: str,
    now: PlanFigures,
) -> Growth:
    counts = dict(held)
    for kind, count in added:
        counts[kind] = counts.get(kind, 0) + count
    figures = _figures(_kinds(tuple(counts.items())), workers, speeds)
    return Growth(added=added, figures=figures, speedup=now.step_s / figures.step_s)


def _additions(room: list[tuple[str, int]], by: int) -> list[tuple[tuple[str, int], ...]]:
    """Every way to add 1..by devices from `room`."""
    if not room:
        return [()]
    (kind, most), *rest = room
    found = []
    for count in range(min(most, by) + 1):
        for other in _additions(rest, by - count):
            found.append((((kind, count), *other)) if count else other)
    return found


def _figures(kinds: Sequence[str], workers: int, speeds: str) -> PlanFigures:
    turns = _turns(kinds, speeds)
    # More devices than logical workers: the fastest ones work, the others would have nothing to do.
    turns = sorted(turns)[:workers]
    return plan_figures(workers, best_use(workers, turns), turns)


def _check_ways(room: dict[str, int], by: int, held: int) -> None:
    """Before they are listed: each is a plan of its own to be computed."""
    ways = min(math.comb(by + len(room), by), math.prod(min(most, by) + 1 for most in room.values()))
    if ways * (held + by) > limits.MAX_PLANNED:
        raise UserError(
            field="--by",
            value=by,
            problem=f"too many ways to add so many devices of {len(room)} kinds",
            remedy="give a smaller number, or fewer kinds",
        )


def _kinds(devices: tuple[tuple[str, int], ...]) -> list[str]:
    return [kind for kind, count in devices for _ in range(count)]


def _turns(kinds: Sequence[str], speeds: str) -> list[float]:
    rates = kind_speeds_of(speeds, field="--speeds")
    missing = [kind for kind in dict.fromkeys(kinds) if kind not in rates]
    if missing:
        raise UserError(
            field="--speeds",
            value=speeds,
            problem=f"no speed is given for {', '.join(missing)}",
            remedy=f"add {missing[0]}=TURNS_PER_SECOND",
        )
    return [1.0 / rates[kind] for kind in kinds]


def _json(figures: PlanFigures) -> dict[str, float]:
    # Sums of reciprocals: the last digits are noise.
    return {"step_s": round(figures.step_s, 12), "waste": round(figures.waste, 12), "perf": round(figures.perf, 12)}


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
