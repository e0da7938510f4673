"""The cluster service in docs/claims.md."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.lib.claims import Parts, Result, Row, verdict


def cluster_load(result: Result) -> Iterator[Row]:
    for row in result["rows"]:
        if row["what"] == "submissions":
            words, target = f"{row['jobs']} submissions over 10 connections", f"under {row['limit_s']:.0f} s"
            found = f"{row['seconds']:.1f} s; the slowest call {row['slowest_s'] * 1e3:.0f} ms"
        elif row["what"] == "answers":
            words = f"every call of the API with {row['jobs']:,} finished jobs in the database"
            target = f"under {row['limit_ms']:.0f} ms, the slowest of {row['calls']} each"
            found = f"at most {row['worst_ms']:.0f} ms (`{row['worst']}`)"
        else:
            words = f"the service with {row['running']} running and {row['waiting']} queued jobs"
            target, found = f"under {row['limit']:.0%} of a core", f"{row['share']:.2%}"
        yield words, target, found, verdict(row["meets"])


def cluster_moves(result: Result) -> Iterator[Row]:
    for row in result["rows"]:
        if row["what"] == "start":
            yield (
                f"from submission to the first step, idle cluster, {row['jobs']} jobs one after another",
                f"under {row['limit_s']:.0f} s",
                f"median {row['median_s']:.2f} s, at most {row['worst_s']:.2f} s",
                verdict(row["meets"]),
            )
        else:
            yield (
                f"a device moves between two running jobs, {row['moves']} times",
                f"within one step of each plus {row['limit_s']:.0f} s",
                f"median {row['median_s']:.2f} s, at most {row['worst_beyond_steps_s']:.2f} s beyond the steps",
                verdict(row["meets"]),
            )


def cluster_reclaims(result: Result) -> Iterator[Row]:
    for row in result["rows"]:
        yield (
            f"reclaim of devices while a job trains: {row['what']}",
            f"{row['reclaims']} of {row['reclaims']} within {row['limit_s']:.0f} s",
            f"{row['reclaims'] - row['late']} of {row['reclaims']}; median {row['median_s']:.2f} s, at most "
            f"{row['worst_s']:.2f} s; {row['abandoned_s']:.1f} s of work abandoned",
            verdict(row["meets"]),
        )


PARTS: Parts = {"cluster_load": cluster_load, "cluster_moves": cluster_moves, "cluster_reclaims": cluster_reclaims}
