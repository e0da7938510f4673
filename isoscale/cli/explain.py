"""The second pass of `isoscale verify --explain`: both runs again up to the first step that differs, then a verdict."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from isoscale.kinds import DeviceSet
from isoscale.runtime import explain as x
from isoscale.types import JobSpec

__all__ = ["explain_difference"]


def explain_difference(console: Console, spec: JobSpec, devices: DeviceSet) -> None:
    """`spec.out` holds two runs that differ and left their digests (`spec.trace == 0`)."""
    from isoscale.cli.verify import run_both

    out = Path(spec.out)
    coarse = x.first_difference(x.read_trace(out / "trace"), x.read_trace(out / "reference" / "trace"))
    if coarse is None:
        console.print("explain: every traced digest agrees; what differs is not part of the state", highlight=False)
        return
    until = spec.until if coarse.place == "end" else coarse.step
    again = replace(spec, out=str(out / "explain"), trace=coarse.step, until=until)
    (out / "explain").mkdir()
    elastic, reference = asyncio.run(run_both(console, again, devices, "explain "))
    fine = None
    if elastic.exit_code == 0 and not reference.error:
        traces = out / "explain" / "trace", out / "explain" / "reference" / "trace"
        fine = x.first_difference(*map(x.read_trace, traces))
    found = fine or coarse
    console.print(Text(f"first difference: {x.sentence(found)}", style="bold"), highlight=False)
    console.print(Text(f"  equal before it: {x.what_was_equal(found)}"), highlight=False)
    console.print(Text(f"  likely cause: {x.remedy(found)}"), highlight=False)
    if fine is None:
        why = elastic.error or reference.error or "the traced step agrees: tracing changed what the script does"
        console.print(Text(f"  could not look closer: {why}", style="dim"), highlight=False)
