"""The simulator's part of docs/claims.md: what its results say, as rows of a table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

Row = tuple[str, str, str, str]


def simulate_pollux(result: dict[str, Any]) -> Iterator[Row]:
    for policy in dict.fromkeys(row["policy"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["policy"] == policy]
        worst = max(rows, key=lambda row: abs(row["difference"]))
        mean = statistics.mean(row["mean_jct_s"] for row in rows)
        published = statistics.mean(row["published_s"] for row in rows)
        yield (
            f"mean completion time under {policy}, {len(rows)} workloads of the Pollux simulator",
            "each within 5 % of the published one",
            f"{mean:,.0f} s, published {published:,.0f} s; worst {worst['difference']:+.1%} (workload "
            f"{worst['workload']})",
            _verdict(all(row["meets"] for row in rows)),
        )
        timed = [row for row in rows if row["faster"]]
        yield (
            f"simulation of one workload under {policy}, over the Pollux simulator's CPU time",
            "at least 50x faster",
            f"{statistics.median(row['faster'] for row in timed):.0f}x in the median "
            f"({statistics.median(row['cpu_s'] for row in timed):.2f} s); the first one, which reads the tables, "
            f"{timed[0]['faster']:.0f}x",
            _verdict(statistics.median(row["faster"] for row in timed) >= 50),
        )


def simulate_philly(result: dict[str, Any]) -> Iterator[Row]:
    for row in result["rows"]:
        yield (
            f"{row['jobs']:,} Philly jobs ({row['part']}) on {row['devices']:,} devices under {row['policy']}",
            f"under {row['limit_s']:.0f} s of one core",
            f"{row['cpu_s']:.0f} s, {row['event_us']:.0f} us an event; mean JCT {row['mean_jct_s']:,.0f} s, "
            f"devices held {row['allocated_utilisation']:.1%}",
            _verdict(row["meets"]),
        )


def simulate_events(result: dict[str, Any]) -> Iterator[Row]:
    for row in result["rows"]:
        costs = ", ".join(f"{int(jobs):,} jobs {cost:.0f} us" for jobs, cost in row["event_us"].items())
        yield (
            f"cost of an event as the trace grows, {row['policy']}",
            "within 2x from 1,000 to 80,000 jobs",
            f"{row['ratio']:.2f}x: {costs}",
            _verdict(row["meets"]),
        )


def simulate_serving(result: dict[str, Any]) -> Iterator[Row]:
    for row in result["rows"]:
        yield (
            f"a serving cluster lends idle devices to training, {row['shape']}, {row['policy']}",
            f"busy utilisation at least {row['target']}x of serving alone, every reclaim within 10 s "
            "(EasyScale: 1.621x in production)",
            f"{row['ratio']:.2f}x ({row['serving_utilisation']:.1%} to {row['busy_utilisation_both']:.1%}); "
            f"{row['reclaims']:,} reclaims, the longest {row['reclaim_max_s']:.1f} s",
            _verdict(row["meets"]),
        )


PARTS: dict[str, Callable[[dict[str, Any]], Iterator[Row]]] = {
    "simulate_pollux": simulate_pollux,
    "simulate_philly": simulate_philly,
    "simulate_events": simulate_events,
    "simulate_serving": simulate_serving,
}


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"
