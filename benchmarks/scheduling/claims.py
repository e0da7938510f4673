"""The deciders' part of docs/claims.md."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.lib.claims import Parts, Result, Row, verdict


def scheduling_speed(result: Result) -> Iterator[Row]:
    for row in result["rows"]:
        if row["limit_ms"]:
            recurrence = f"; by the recurrence {row['recurrence_ms']:.1f} ms" if "recurrence_ms" in row else ""
            yield (
                row["what"],
                f"under {row['limit_ms']:g} ms",
                f"{row['cpu_ms']:.2g} ms{recurrence}",
                verdict(row["meets"]),
            )


def scheduling_decisions(result: Result) -> Iterator[Row]:
    for what in dict.fromkeys(row["what"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["what"] == what]
        slowest = ", ".join(f"{row['policy']} {row['slowest_cpu_ms'] / 1e3:.2g} s" for row in rows)
        yield (
            f"one decision for {rows[0]['jobs']:,} jobs on {rows[0]['devices']:,} devices of four kinds, {what}",
            "under 1 s for every policy",
            f"slowest of five: {slowest}",
            verdict(all(row["meets"] for row in rows)),
        )


PARTS: Parts = {"scheduling_speed": scheduling_speed, "scheduling_decisions": scheduling_decisions}
