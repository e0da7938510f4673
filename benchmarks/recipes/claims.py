"""The recipes' part of docs/claims.md: proofs, quality and costs over all recipes, as rows of a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.lib.claims import Parts, Result, Row, verdict
from benchmarks.recipes.balanced import tables as balanced
from benchmarks.recipes.kept import parts_of
from isoscale.recipes.catalogue import RECIPES, find

LIMIT, FROM_MS = 1.02, 50.0


def recipes_proof(result: Result) -> Iterator[Row]:
    rows = result["rows"]
    wanted = sum(len(parts_of()) * (1 + len(recipe.variants)) for recipe in RECIPES)
    hold = sum(row["equal"] for row in rows)
    text = f"{hold} of {wanted} hold" + (f", {wanted - len(rows)} not tried yet" if len(rows) < wanted else "")
    yield (
        f"{len(RECIPES)} recipes against stock DDP with 4 processes: 1, 3, 2, 4 executors; on mixed kinds; kill -9",
        "equal bits",
        text,
        verdict(hold == wanted),
    )
    minutes = sum(row["seconds"] for row in rows) / 60
    busy = sum(row.get("processor_s", 0.0) for row in rows) / 60
    text = f"{minutes:.0f} minutes, {busy:.0f} of processor time"
    yield "all proofs by one command", "under 60 minutes", text, verdict(len(rows) == wanted and minutes < 60)


def recipes_quality(result: Result) -> Iterator[Row]:
    rows = [row for row in result["rows"] if len(row["runs"]) == len(result["seeds"])]
    text = f"{sum(row['learns'] for row in rows)} of {len(RECIPES)}"
    met = len(rows) == len(RECIPES) and all(row["learns"] for row in rows)
    yield (
        f"recipes better than their trivial baseline with each of {len(result['seeds'])} seeds",
        "all",
        text,
        verdict(met),
    )


def recipes_table(result: Result) -> Iterator[Row]:
    switches = {row["recipe"]: row["switch"] for row in result["rows"] if row["part"] == "switch"}
    for name, rows in switches.items():
        due = rows if rows[0]["a_ms"] >= FROM_MS else []
        if due:
            worst = max(due, key=lambda row: row["ratio"] - row["half_width"])
            gpu = find(name).paper_gpu
            yield (
                f"{name}: k = {', '.join(str(row['k']) for row in due)} logical workers on one executor over plain "
                "gradient accumulation",
                f"at most {LIMIT}x" + (f" (EasyScale's {gpu.model}: {gpu.switch:.3f}x)" if gpu else ""),
                f"worst {worst['ratio']:.3f}x +- {worst['half_width']:.3f} (k = {worst['k']})",
                verdict(worst["ratio"] - worst["half_width"] <= LIMIT),
            )
    for row in result["rows"]:
        gpu = find(row["recipe"]).paper_gpu
        if row["part"] == "levels" and gpu is not None:
            highest = max(gpu.heterogeneous)
            for name, kinds in (("avx2", "cpu and cpu-avx2"), ("sse", "cpu, cpu-avx2 and cpu-sse")):
                yield (
                    f"{row['recipe']}: `heterogeneous` on {kinds} over `off`",
                    f"at most EasyScale's {highest:.2f}x",
                    f"{row[name]['ratio']:.2f}x +- {row['half_width']:.2f}",
                    verdict(row[name]["ratio"] - row["half_width"] <= highest),
                )


def recipes_balanced(result: Result) -> Iterator[Row]:
    for row in result["rows"]:
        if row["matrix"] != "LSTM-1500" or row["sparsity"] != 0.8:
            continue
        half = abs(row["control"] - 1)
        for other, ratio, least in (("dense", "against_dense", 2.45), ("CSR", "against_csr_int64", 3.1)):
            yield (
                f"packed balanced product, 6000 x 1500, 80 % sparse, blocks of {row['block_width']}, "
                f"{row['cache']} cache, one thread: times as fast as {other}",
                f"at least {least}",
                f"{row[ratio]:.2f} (control {row['control']:.2f})",
                verdict(row[ratio] * (1 - half) >= least),
            )


def recipes_balanced_accuracy(result: Result) -> Iterator[Row]:
    for name in ("lstm", "cnn"):
        for sparsity in balanced.SPARSITIES:
            gaps = balanced.gaps(result["rows"], name, sparsity, "accuracy")
            mean = statistics.mean(gaps) if gaps else 0.0
            yield (
                f"{name}, {float(sparsity):.0%} sparse: accuracy of balanced less that of random sparsity, in points",
                "at least -0.5 over 5 seeds",
                balanced.interval(gaps) or "not run yet",
                verdict(len(gaps) == 5 and mean >= -0.5),
            )


PARTS: Parts = {
    "recipes_proof": recipes_proof,
    "recipes_quality": recipes_quality,
    "recipes_table": recipes_table,
    "recipes_balanced": recipes_balanced,
    "recipes_balanced_accuracy": recipes_balanced_accuracy,
}
