"""What isoscale costs over plain PyTorch: its part of docs/claims.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.lib.claims import Parts, Result, Row, verdict


def context_switch(result: Result) -> Iterator[Row]:
    absolute = result["absolute"]["turn_us"]
    yield "a context switch, engine time per turn", "at most 200 us", f"{absolute:.0f} us", verdict(absolute <= 200)
    for model in dict.fromkeys(row["model"] for row in result["rows"]):
        for order in ("ddp", "tree"):
            rows = [row for row in result["rows"] if row["model"] == model and row["order"] == order]
            figures = [(*_figure(row), row["k"]) for row in rows]
            worst, half_width, k = max(figures, key=lambda one: one[0] - one[1])
            mean = sum(one[0] for one in figures) / len(figures)
            yield (
                f"k = {', '.join(str(row['k']) for row in rows)} logical workers on one executor over plain gradient "
                f"accumulation, {model}, order {order}",
                "at most 1.02x (EasyScale: at most 1.0197x, 1.0042x on average)",
                f"mean {mean:.3f}x, worst {worst:.3f}x +- {half_width:.3f} (k = {k}){_rounds(rows)}",
                verdict(worst - half_width <= 1.02),
            )


def against_ddp(result: Result) -> Iterator[Row]:
    for row in result["rows"]:
        yield (
            f"N = {row['workers']} on {row['executors']} executors, order {row['order']}, over stock DDP with "
            f"{row['executors']} processes, {row['model']}",
            f"step time at most {row['limit']:.2f}x",
            f"{_figure(row)[0]:.3f}x +- {_figure(row)[1]:.3f}{_by_the_clock(row)}{_rounds([row])}; "
            f"exchange {row['exchange_ms']:.1f} ms, plain all-reduce {row['plain_all_reduce_ms']:.1f} ms",
            verdict(row["meets"]),
        )


def memory(result: Result) -> Iterator[Row]:
    rows = result["rows"]
    for order in ("tree", "ddp"):
        last = max((row for row in rows if row["order"] == order), key=lambda row: row["k"])
        packed = next(row for row in rows if row["order"].startswith("packed"))
        yield (
            f"memory of one executor, 1 to {last['k']} logical workers, order {order}",
            f"at most {last['limit']:g} copies of the gradients more",
            f"{last['copies']:.1f} copies more, {last['peak_mb']:.0f} MB; "
            f"{packed['k']} packed processes {packed['peak_mb']:.0f} MB",
            verdict(last["meets"]),
        )


def import_time(result: Result) -> Iterator[Row]:
    (row,) = result["rows"]
    measured = f"{row['with_import_ms']:.1f} ms, {row['empty_ms']:.1f} ms without it"
    yield "an interpreter that imports isoscale", "under 100 ms more", measured, verdict(row["import_ms"] < 100)


def _figure(row: Result) -> tuple[float, float]:
    """Ratio and half-width of processor time; of wall-clock in results that have nothing else."""
    kind = "cpu_" if "cpu_ratio" in row else ""
    return row[f"{kind}ratio"], row[f"{kind}half_width"]


def _by_the_clock(row: Result) -> str:
    """A target is met by both kinds of time, where both were measured."""
    return f" (by the clock {row['wall_ratio']:.3f}x +- {row['wall_half_width']:.3f})" if "wall_ratio" in row else ""


def _rounds(rows: Sequence[Result]) -> str:
    """How many comparisons each figure is the median of, where that is known."""
    counts = sorted({row["rounds"] for row in rows if "rounds" in row})
    return f", {'-'.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} rounds" if counts else ""


PARTS: Parts = {
    "context_switch": context_switch,
    "against_ddp": against_ddp,
    "memory": memory,
    "import_time": import_time,
}
