"""The second pass of `isoscale verify --explain`: both runs again up to the first step that differs, then a verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from isoscale.kinds import DeviceSet
from isoscale.runtime.code.freezing import code_kept_for
from isoscale.runtime.tools import explain as x
from isoscale.types import JobSpec

__all__ = ["explain_difference"]


def explain_difference(
    console: Console, spec: JobSpec, devices: DeviceSet, plan: Sequence[tuple[int, DeviceSet]] = ()
) -> None:
    """`spec.out` holds two runs that differ and left their digests (`spec.trace == 0`)."""
    from isoscale.cli.verify import run_both

    out = Path(spec.out)
    coarse = x.first_difference(x.read_trace(out / "trace"), x.read_trace(out / "reference" / "trace"))
    if coarse is None:
        _say(console, "explain: every traced digest agrees; what differs is not part of the state")
        return
    until = spec.until if coarse.place == "end" else coarse.step
    again = replace(spec, out=str(out / "explain"), trace=coarse.step, until=until)
    (out / "explain").mkdir()
    _say(console, f"explain: both runs again with every operator traced in step {coarse.step}", "dim")
    elastic, reference = asyncio.run(run_both(console, again, devices, plan, code=code_kept_for(out), quiet=True))
    fine = None
    if elastic.exit_code == 0 and not reference.error:
        traces = out / "explain" / "trace", out / "explain" / "reference" / "trace"
        fine = x.first_difference(*map(x.read_trace, traces))
    found = fine or coarse
    _say(console, f"first difference: {x.sentence(found)}", "bold")
    _say(console, f"equal before it: {x.what_was_equal(found)}")
    _say(console, f"likely cause: {x.remedy(found)}")
    if fine is None:
        why = elastic.error or reference.error or "the traced step agrees: tracing changed what the script does"
        _say(console, f"could not look closer: {why}", "dim")


def _say(console: Console, text: str, style: str = "") -> None:
    # Wrapped at words for a reader, one line for a file.
    console.print(Text(text, style=style), highlight=False, soft_wrap=not console.is_terminal)
