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


PARTS: Parts = {"scheduling_speed": scheduling_speed}
