"""`isoscale policies`: the policies there are, and a check of one from outside in random worlds."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from isoscale import limits, plugins
from isoscale.cli.numbers import in_range
from isoscale.scheduling.policy import GROUP, policy_names
from isoscale.sim.checking import check_policy
from isoscale.sim.run import parse_policies

__all__ = ["policies"]

Check = Annotated[
    str | None,
    typer.Option(help="Run these, by name or MODULE:CLASS, through random worlds and say what they break."),
]
Worlds = Annotated[int, typer.Option(help="Random worlds to run each in.", callback=in_range(limits.Range(1, 100_000)))]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_SHOWN = 5


def policies(check: Check = None, worlds: Worlds = 50, json: AsJson = False) -> None:
    """List the policies of `isoscale simulate`, or check some in random worlds; exit 1 if one breaks a rule."""
    if check is None:
        _list(as_json=json)
        return
    found: dict[str, dict[str, list[str]]] = {}
    console = Console(stderr=True)
    for label, make in parse_policies(check, field="--check"):
        seeds = track(
            range(worlds), description=label, console=console, transient=True, disable=not console.is_terminal
        )
        problems = {str(seed): check_policy(make, seed) for seed in seeds}
        found[label] = {seed: told for seed, told in problems.items() if told}
    if json:
        print(json_module.dumps({"format": 1, "worlds": worlds, "broken": found}, indent=1))
    else:
        for label, broken in found.items():
            _tell(label, broken, worlds)
    if any(found.values()):
        raise typer.Exit(1)


def _list(*, as_json: bool) -> None:
    known = {**policy_names(), **{name: f"from {path}" for name, path in plugins.declared(GROUP).items()}}
    if as_json:
        print(json_module.dumps({"format": 1, "policies": known}, indent=1))
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("policy", no_wrap=True)
    table.add_column("what it does")
    for name, summary in known.items():
        table.add_row(name, summary)
    Console(highlight=False, soft_wrap=True).print(table)


def _tell(label: str, broken: dict[str, list[str]], worlds: int) -> None:
    if not broken:
        print(f"{label}: {worlds} random worlds, nothing broken")
        return
    print(f"{label}: broke a rule in {len(broken)} of {worlds} random worlds")
    for seed, told in list(broken.items())[:_SHOWN]:
        print(f"  world {seed}: {told[0]}" + (f" (and {len(told) - 1} more)" if len(told) > 1 else ""))
