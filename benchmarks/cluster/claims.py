"""The cluster service's part of docs/claims.md: the simulator held against it, and training beside serving."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.lib.claims import Parts, Result, Row, verdict

_WITHIN, _LATENCY = 0.10, 1.1


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
    rows = {row["run"]: row for row in result["rows"]}
    lending, control = rows["lending"], rows["control"]
    stray = abs(control["ratio_in_windows"] - 1)
    yield (
        "p99 latency after reclaims, over serving alone in the same seconds",
        f"{_LATENCY}x + control",
        f"{lending['ratio_in_windows']:.2f}x +- {stray:.2f} ({lending['requests_in_windows']} requests)",
        verdict(lending["ratio_in_windows"] <= _LATENCY + stray),
    )
    yield (
        f"reclaims within 2 s, {len(lending['reclaims'])} of them",
        "all",
        ", ".join(f"{one['seconds']:.2f} s" for one in lending["reclaims"]),
        verdict(bool(lending["reclaims"]) and not any(one["late"] for one in lending["reclaims"])),
    )
    gain = lending["utilisation"] / rows["alone"]["utilisation"] - 1
    yield (
        "utilisation of two cores, lending over serving alone",
        "EasyScale: +62.1 %",
        f"{rows['alone']['utilisation']:.1%} to {lending['utilisation']:.1%}: {gain:+.1%}; "
        f"{lending['samples']} samples trained",
        "",
    )


PARTS: Parts = {"simulated_against_real": simulated_against_real, "serving": serving}
