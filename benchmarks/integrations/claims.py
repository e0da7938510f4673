"""What the integrations cost: their part of docs/claims.md."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.lib.claims import Parts, Result, Row, verdict

_LIMIT = 1.03


def trainer_step(result: Result) -> Iterator[Row]:
    for row in result["rows"]:
        what = f"Hugging Face's Trainer, {row['model']}, steps of {row['a_ms']:.0f} ms: step time over the stock class"
        figure = f"{row['ratio']:.4f}x +- {row['half_width']:.4f}"
        yield what, f"at most {_LIMIT:.2f}x", figure, verdict(row["ratio"] - row["half_width"] <= _LIMIT)


PARTS: Parts = {"trainer_step": trainer_step}
