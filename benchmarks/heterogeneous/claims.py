"""Mixed kinds: their part of docs/claims.md."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.lib.claims import Parts, Result, Row, verdict


def heterogeneous(result: Result) -> Iterator[Row]:
    for row in result["rows"]:
        if "target" in row:
            yield (
                f"one cpu-avx2 and one cpu-sse executor at `heterogeneous` over the sum of both alone, {row['model']}",
                f"at least {row['target']}",
                f"{row['ratio']:.2f} +- {row['half_width']:.2f}",
                verdict(row["meets"]) + (f": {row['why']}" if not row["meets"] and row.get("why") else ""),
            )


PARTS: Parts = {"heterogeneous": heterogeneous}
