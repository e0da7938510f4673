"""Rows of docs/claims.md from the results of the data benchmarks: what, target, measured, verdict."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.lib.claims import Parts, Result, Row, verdict


def data_loading(result: Result) -> Iterator[Row]:
    targets, processes = result["targets"], result["loader_processes"]
    for row in result["rows"]:
        if "speed" in row:
            workers = row["logical_workers"]
            target = targets["one" if workers == 1 else "eight"]
            yield (
                f"{workers} logical worker{'s' if workers > 1 else ''} with {processes} loader processes over stock "
                f"DataLoaders with {workers * processes}, {row['data']} data",
                f"throughput at least {target}x",
                f"{row['speed']:.2f}x, control {row['control']:.2f} +- {row['half_width']:.2f}",
                verdict(1 / (row["ratio"] - row["half_width"]) >= target),
            )
        else:
            memory, first = row["memory_mb"], row["first_batch_s"]
            yield (
                f"loader processes of 8 logical workers, {row['data']} data",
                "a fraction of the memory",
                f"{memory['ours']:.0f} MB, stock {memory['stock']:.0f} MB",
                verdict(memory["ours"] < memory["stock"]),
            )
            times = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in first.items())
            limit = targets["first_batch"]
            yield (
                f"from a resume or rescale to the first batch, over a fresh stock DataLoader, {row['data']} data",
                f"at most {limit}x",
                f"{row['first_batch_ratio']:.2f}x ({times})",
                verdict(row["first_batch_ratio"] <= limit),
            )


def stream(result: Result) -> Iterator[Row]:
    for row in result["rows"]:
        loaders = row["processes"] == "two loader processes"
        peer = "a stock DataLoader with as many" if loaders else "plain iterators in as many processes"
        yield (
            f"streaming {row['case']}, {row['processes']}, {row['workers']} logical "
            f"worker{'s' if row['workers'] > 1 else ''}, shuffle buffer {row['buffer']}",
            f"at least {result['target']} of {peer}",
            f"{row['speed']:.2f}, control {row['control']:.2f} +- {row['half_width']:.2f}",
            verdict(1 / (row["ratio"] - row["half_width"]) >= result["target"]),
        )


PARTS: Parts = {"data_loading": data_loading, "stream": stream}
