"""The part of `isoscale analyze` in docs/claims.md."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.lib.claims import Parts, Result, Row, verdict


def analyze_speed(result: Result) -> Iterator[Row]:
    words = {
        "log": "isoscale analyze on a job log of Philly's size ({jobs:,} jobs, {attempts:,} attempts, generated)",
        "monitor": "isoscale analyze on a month of 2,504 devices by the minute ({samples:,} samples, generated)",
    }
    for row in result["rows"]:
        yield (
            words[row["what"]].format(**row),
            f"under {row['limit_s']:.0f} s and {row['limit_mb'] / 1000:g} GB",
            f"{row['wall_s']:.0f} s ({row['cpu_s']:.0f} s of CPU), {row['peak_mb']:,.0f} MB",
            verdict(row["meets"]),
        )


def analyze_totals(result: Result) -> Iterator[Row]:
    rows = result["rows"]
    met = [row for row in rows if row["meets"]]
    wrong = "; ".join(f"{row['what']}: {row['found']:,} for {row['published']:,}" for row in rows if not row["meets"])
    yield (
        f"published totals of public traces, found again by isoscale analyze ({len(rows)} of them)",
        "all, to the last digit that was published",
        f"{len(met)} of {len(rows)}" + (f"; not: {wrong}" if wrong else ""),
        verdict(len(met) == len(rows)),
    )


PARTS: Parts = {"analyze_speed": analyze_speed, "analyze_totals": analyze_totals}
