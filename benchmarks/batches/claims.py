"""What live batch sizes cost: their part of docs/claims.md."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.lib.claims import Parts, Result, Row, verdict


def costs(result: Result) -> Iterator[Row]:
    declared, noise, change = result["rows"]
    for row, limit in ((declared, 1.01), (noise, 1.01)):
        met = all(row[f"{kind}_ratio"] - row[f"{kind}_half_width"] <= limit for kind in ("cpu", "wall"))
        figure = (
            f"{row['cpu_ratio']:.4f}x +- {row['cpu_half_width']:.4f} of processor time, "
            f"{row['wall_ratio']:.4f}x +- {row['wall_half_width']:.4f} by the clock, {row['rounds']} rounds"
        )
        yield f"{row['what']}, {row['model']}, step time over without", f"at most {limit:.2f}x", figure, verdict(met)
    figure = f"{change['extra_ms']:.1f} ms over a step of {change['step_ms']:.1f} ms"
    met = change["extra_ms"] <= change["step_ms"]
    yield f"{change['what']} without other devices, {change['model']}", "at most one step", figure, verdict(met)


PARTS: Parts = {"batch_costs": costs}
