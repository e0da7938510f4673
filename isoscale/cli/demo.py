"""`scripts/demo`: one job on 1, 2, 3 and 4 executors and under stock DDP; five equal digests and a picture.

Trains `isoscale/recipes/digits.py` with four logical workers. Exits 1 if a digest differs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from isoscale.cli.progress import Progress, count
from isoscale.cli.run import report_failure
from isoscale.cli.verify import ReferenceProgress
from isoscale.kinds import DeviceSet
from isoscale.protocol.events import read_events
from isoscale.runtime.coordinator import RunResult, run_job
from isoscale.runtime.verify import run_reference_ranks
from isoscale.types import JobSpec

_WORKERS = 4
_EPOCHS = "4"


def main() -> int:
    console = Console(soft_wrap=True)
    out = Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    script = Path(__file__).parent.parent / "recipes" / "digits.py"
    spec = JobSpec(workers=_WORKERS, script=str(script), script_args=("--epochs", _EPOCHS))
    console.print(f"\n[bold]One job, {_WORKERS} logical workers, on 1 to {_WORKERS} executors and under stock DDP[/]")
    console.print("A small convolutional network on handwritten digits: BatchNorm, dropout, random shifts.\n")
    runs: dict[str, RunResult] = {}
    for executors in range(1, _WORKERS + 1):
        name = count(executors, "executor")
        result = _elastic(console, replace(spec, out=str(out / f"executors-{executors}")), executors, name)
        if result.exit_code:
            report_failure(result, out / f"executors-{executors}")
            return result.exit_code
        runs[name] = result
    with ReferenceProgress(console, _WORKERS) as progress:
        reference_spec = replace(spec, out=str(out / "stock-ddp"))
        reference = asyncio.run(run_reference_ranks(reference_spec, "cpu", progress))
    if reference.error:
        console.print(reference.traceback + reference.error, markup=False)
        return 1
    stock = f"stock DDP, {_WORKERS} processes"
    digests = {**{name: run.digest for name, run in runs.items()}, stock: reference.digest}
    equal = len(set(digests.values())) == 1
    console.print(_table(digests, runs, equal))
    curves = {name: _losses(out / f"executors-{i + 1}") for i, name in enumerate(runs)}
    picture = _draw({**curves, stock: _reference_losses(out / "stock-ddp")}, out / "loss.png")
    console.print(f"loss curves: {picture}", highlight=False)
    return 0 if equal else 1


def _elastic(console: Console, spec: JobSpec, executors: int, name: str) -> RunResult:
    Path(spec.out).mkdir(parents=True)
    with Progress(console, name, quiet_logs=True) as progress:
        return asyncio.run(run_job(spec, DeviceSet((("cpu", executors),)), progress))


def _table(digests: dict[str, str], runs: dict[str, RunResult], equal: bool) -> Table:
    title, style = ("the same bits", "bold green") if equal else ("THE BITS DIFFER", "bold red")
    table = Table(title=title, title_style=style, caption="digest: parameters, buffers and optimizer state")
    for column in ("run", "steps", "accuracy", "digest"):
        table.add_column(column, no_wrap=True)
    for name, digest in digests.items():
        run = runs.get(name)
        accuracy = f"{run.logged['accuracy']:.4f}" if run else "-"
        table.add_row(name, str(run.step) if run else "-", accuracy, f"{digest[:32]} ...")
    return table


def _losses(run: Path) -> list[float]:
    return [float(e["loss"]) for e in read_events(run / "events.jsonl") if e["event"] == "step"]


def _reference_losses(run: Path) -> list[float]:
    """Every rank wrote its own losses; the step's is their mean."""
    ranks = [(run / f"rank-{rank}.jsonl").read_text().splitlines() for rank in range(_WORKERS)]
    return [
        sum(float.fromhex(json.loads(line)["loss"]) for line in lines) / _WORKERS for lines in zip(*ranks, strict=True)
    ]


def _draw(curves: dict[str, list[float]], picture: Path) -> Path:
    """The curves lie on top of each other, so each is drawn as dashes of its own phase."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for i, (name, losses) in enumerate(curves.items()):
        dashes = (i * 6, (6, 6 * (len(curves) - 1)))
        axes.plot(range(1, len(losses) + 1), losses, color=f"C{i}", linewidth=2, linestyle=dashes)
        axes.plot([], [], color=f"C{i}", linewidth=2, label=name)
    axes.set(xlabel="global step", ylabel="training loss", title="One job, five runs, one curve")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(picture, dpi=130)
    return picture


if __name__ == "__main__":
    sys.exit(main())
