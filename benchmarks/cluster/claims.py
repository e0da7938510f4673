"""The cluster service in docs/claims.md: itself, the simulator held against it, training beside serving."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from benchmarks.lib.claims import Parts, Result, Row, verdict

_WITHIN, _LATENCY = 0.10, 1.1


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
            f"reclaim of devices while a job trains: {row['what']}, turns {row['turns']}",
            f"{row['reclaims']} of {row['reclaims']} within {row['limit_s']:.0f} s",
            f"{row['reclaims'] - row['late']} of {row['reclaims']}; median {row['median_s']:.2f} s, at most "
            f"{row['worst_s']:.2f} s; {row['abandoned_s']:.1f} s of work abandoned in {row['gave_up_work']} of them",
            verdict(row["meets"]),
        )


def simulated_against_real(result: Result) -> Iterator[Row]:
    summary = result["summary"]
    for policy, one in summary["policies"].items():
        yield (
            f"mean completion time of {len(summary['jobs'])} real jobs on 2 devices, {policy}",
            f"simulated within {_WITHIN:.0%} of live",
            f"live {one['live_s']:.1f} s ({one['live_least_s']:.1f} to {one['live_most_s']:.1f}), simulated "
            f"{one['simulated_s']:.1f} s: {one['error']:+.1%}",
            verdict(abs(one["error"]) <= _WITHIN),
        )
    disagree = ["; ".join(pair) for pair in summary["pairs_disagree"]]
    yield (
        f"order of policies, {len(summary['pairs_apart'])} pairs that differ by more than repetitions do",
        "the same",
        "the same" if not disagree else f"not for {', '.join(disagree)}",
        verdict(not disagree),
    )
    yield (
        f"best elastic policy over FIFO ({summary['best']})",
        "aim: half, if the workload can give it",
        f"live {summary['best_over_fifo_live']:.2f}x, simulated {summary['best_over_fifo_simulated']:.2f}x",
        "",
    )


def serving(result: Result) -> Iterator[Row]:
    summary = result["summary"]
    lending = [row for row in result["rows"] if row["run"] == "lending"]
    alone = [row for row in result["rows"] if row["run"] == "alone"]
    reclaims = [one for row in lending for one in row["reclaims"]]
    yield (
        "p99 latency after reclaims, over serving alone in the same seconds",
        f"{_LATENCY}x + control",
        f"{summary['ratio']:.2f}x +- {summary['control']:.2f} ({summary['requests']} requests)",
        verdict(summary["ratio"] <= _LATENCY + summary["control"]),
    )
    yield (
        f"reclaims within 2 s, {len(reclaims)} of them",
        "all",
        ", ".join(f"{one['seconds']:.2f} s" for one in reclaims),
        verdict(bool(reclaims) and not any(one["late"] for one in reclaims)),
    )
    without, with_training = (mean(row["utilisation"] for row in rows) for rows in (alone, lending))
    yield (
        "utilisation of two cores, lending over serving alone",
        "EasyScale: +62.1 %",
        f"{without:.1%} to {with_training:.1%}: {with_training / without - 1:+.1%}; "
        f"{sum(row['samples'] for row in lending)} samples trained in {len(lending)} runs",
        "",
    )


def cluster_pages(result: Result) -> Iterator[Row]:
    pages = [row for row in result["rows"] if row["what"] != "update"]
    slowest = max(pages, key=lambda row: row["paint_ms"])
    latest = max(pages, key=lambda row: row["data_ms"])
    yield (
        f"first paint of each of {len(pages)} pages in Chromium, 10,000 jobs and 64 devices, a job of a million steps",
        f"under {slowest['limit_ms']:.0f} ms, median of {slowest['visits']} visits each",
        f"at most {slowest['paint_ms']:.0f} ms ({slowest['what']}); first data at most {latest['data_ms']:.0f} ms "
        f"({latest['what']})",
        verdict(all(row["meets"] for row in pages)),
    )
    for row in result["rows"]:
        if row["what"] == "update":
            yield (
                f"from a change of a job to the page that shows it, {row['changes']} times",
                f"under {row['limit_s']:.0f} s",
                f"median {row['median_s']:.2f} s, at most {row['worst_s']:.2f} s",
                verdict(row["meets"]),
            )


PARTS: Parts = {
    "cluster_load": cluster_load,
    "cluster_moves": cluster_moves,
    "cluster_pages": cluster_pages,
    "cluster_reclaims": cluster_reclaims,
    "simulated_against_real": simulated_against_real,
    "serving": serving,
}
