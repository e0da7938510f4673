"""Writes the tables of docs/policies.md from the kept results.

python -m benchmarks.simulate.page            # rewrite the tables
python -m benchmarks.simulate.page --check    # exit 1 if they are not what the results say
"""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.lib.generated import Makers, rewrite, table
from benchmarks.lib.processes import ROOT

PAGE = ROOT / "docs" / "policies.md"
Rows = list[dict[str, Any]]
#: means that are no workload, and policies that are told more than Pollux
_PARTS, _TOLD_MORE = ("mean of 1-4", "mean of 5-8"), ("flow", "optimus", "srtf")
#: of each guideline, the setting that others are held against: what the studied cluster did, or nothing
_WITHOUT = {"trial": "none", "retries": "three, whatever the error", "locality": "none"}
_OURS = {"flow(declared=false)": "`flow(declared=false)`: equal information", "flow": "`flow`: declared work"}


def kept(name: str) -> Rows:
    return list(json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"])


def pollux() -> str:
    rows = {(row["load"], row["policy"], str(row["workload"])): row for row in kept("simulate_ours")}

    def cell(load: str, policy: str) -> str:
        whole, rest = rows[load, policy, "mean of all"], rows[load, policy, "mean of 5-8"]
        each = f"{whole['difference']:+.1%}, {rest['difference']:+.1%}, {whole['workloads_met']}"
        return f"{whole['mean_jct_s']:,.0f} s ({each})"

    loads = sorted({load for load, _, _ in rows})
    lines = (
        (
            load,
            f"{rows[load, 'flow', 'mean of all']['published_s']:,.0f} s",
            *(cell(load, policy) for policy in _OURS),
            cell(load, "pollux") if (load, "pollux", "mean of all") in rows else "",
        )
        for load in loads
    )
    return table(("load", "Pollux, published", *_OURS.values(), "`pollux` here"), lines)


def everybody() -> str:
    """Every policy on every workload at load 1.0; the least of those that know no more than Pollux in bold."""
    rows = [row for row in kept("simulate_ours") if row["load"] == "1.0" and row["workload"] not in _PARTS]
    names = {number: str(number).removeprefix("mean of ") for number in dict.fromkeys(row["workload"] for row in rows)}
    times = {(row["policy"], row["workload"]): row["mean_jct_s"] for row in rows}
    policies = list(dict.fromkeys(policy for policy, _ in times))
    least = {number: min(times[one, number] for one in policies if one not in _TOLD_MORE) for number in names}

    def cell(policy: str, number: Any) -> str:
        is_least = policy not in _TOLD_MORE and times[policy, number] == least[number]
        return f"**{times[policy, number]:,.0f}**" if is_least else f"{times[policy, number]:,.0f}"

    lines = ((f"`{policy}`", *(cell(policy, number) for number in names)) for policy in policies)
    return table(("policy", *names.values()), lines)


def deadlines() -> str:
    rows = {(row["trace"], row["policy"]): row for row in kept("simulate_deadlines")}
    traces, policies = list(dict.fromkeys(t for t, _ in rows)), list(dict.fromkeys(p for _, p in rows))

    def cell(trace: str, policy: str) -> str:
        row = rows[trace, policy]
        refused = f", {row['rejected']:,} refused" if row["rejected"] else ""
        return f"{row['met']:.1%}{refused}; {row['mean_jct_s']:,.0f} s"

    lines = ((f"`{policy}`", *(cell(trace, policy) for trace in traces)) for policy in policies)
    return table(("policy", *traces), lines)


def itp() -> str:
    rows = kept("simulate_ours_itp")
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    return _by_policy(rows, "trace", policies, lambda trace: f"{trace.rpartition(' ')[2]}", "week")


def mixed() -> str:
    rows = kept("simulate_mixed")
    policies = [one for one in dict.fromkeys(row["policy"] for row in rows) if not one.endswith(", alone")]
    shown = [one for one in policies if "(" not in one or one == "pollux(kinds=preferred)"]
    return _by_policy(rows, "mix", shown, lambda mix: mix, "mix")


def shared() -> str:
    rows = {(row["mix"], row["policy"]): row["mean_jct_s"] for row in kept("simulate_mixed")}
    alone = [policy.removesuffix(", alone") for _, policy in rows if policy.endswith(", alone")]
    policies, mixes = list(dict.fromkeys(alone)), list(dict.fromkeys(mix for mix, _ in rows))

    def cell(mix: str, policy: str) -> str:
        told, without = rows[mix, policy], rows[mix, f"{policy}, alone"]
        return f"{without:,.0f} → {told:,.0f} ({told / without - 1:+.1%})"

    lines = ((mix, *(cell(mix, policy) for policy in policies)) for mix in mixes)
    return table(("mix", *(f"`{policy}`" for policy in policies)), lines)


def spot() -> str:
    rows = kept("simulate_spot")
    by = {(row["costs"], row["policy"]): row for row in rows}

    def cell(costs: str, policy: str) -> str:
        row = by[costs, policy]
        return f"${row['dollars_per_job']:.2f}, {row['mean_jct_s']:,.0f} s, {row['rescales_per_job']:.1f}"

    policies, presets = list(dict.fromkeys(policy for _, policy in by)), list(dict.fromkeys(costs for costs, _ in by))
    lines = ((_asked(by[presets[0], one]), *(cell(costs, one) for costs in presets)) for one in policies)
    return table(("policy", *(f"`{costs}`: dollars a job, mean JCT, changes a job" for costs in presets)), lines)


def _asked(row: dict[str, Any]) -> str:
    if row["hour_worth"] is None:
        return f"`{row['policy']}`, blind to prices"
    return f"`flow`, an hour worth ${row['hour_worth']:g}"


def fairness() -> str:
    rows = kept("simulate_fairness")
    by = {(row["world"], row["policy"]): row for row in rows}
    worlds, policies = list(dict.fromkeys(w for w, _ in by)), list(dict.fromkeys(p for _, p in by))

    def cell(world: str, policy: str) -> str:
        row = by[world, policy]
        worst = f"{row['unfairness_p99']:.2f} / {row['unfairness_max']:.2f}"
        long = f"{row['long_p99']:.2f} / {row['long_max']:.2f}"
        return f"{row['mean_jct_s']:,.0f} s; {worst}; {long}; {row['unfair_share']:.0%}"

    lines = ((f"`{policy}`", *(cell(world, policy) for world in worlds)) for policy in policies)
    return table(("policy", *worlds), lines)


def guidelines() -> str:
    rows = kept("simulate_guidelines")
    without = {(row["trace"], row["feature"]): row for row in rows if row["setting"] == _WITHOUT[row["feature"]]}

    def line(row: dict[str, Any]) -> tuple[str, ...]:
        before, fails = without[row["trace"], row["feature"]], row["feature"] != "locality"
        change = "" if row is before else f" ({row['mean_jct_s'] / before['mean_jct_s'] - 1:+.1%})"
        saved = before["failed_device_h"] - row["failed_device_h"]
        return (
            row["trace"],
            row["feature"],
            row["setting"],
            f"{row['mean_jct_s']:,.0f} s{change}",
            f"{row['mean_queue_s']:,.0f} s",
            f"{row['caught']:,} of {row['failed_trials']:,}" if fails else "",
            f"{row['retries']:,}" if fails else "",
            f"{row['failed_device_h']:,.0f} h" if fails else "",
            f"{saved:+,.0f} h" if fails and row is not before else "",
            f"{row['finished']:,.0f}",
        )

    head = ("trace", "feature", "setting", "mean JCT", "queueing", "caught", "retries", "in failed trials", "saved")
    return table((*head, "done"), map(line, rows))


def _by_policy(rows: Rows, key: str, policies: list[str], show: Any, title: str) -> str:
    """Mean completion times; the least of each line in bold."""

    def line(value: str) -> tuple[str, ...]:
        times = {row["policy"]: row["mean_jct_s"] for row in rows if row[key] == value}
        least = min(times[policy] for policy in policies)
        cells = (f"**{times[one]:,.0f}**" if times[one] == least else f"{times[one]:,.0f}" for one in policies)
        return show(value), *cells

    return table((title, *(f"`{policy}`" for policy in policies)), map(line, dict.fromkeys(row[key] for row in rows)))


MAKERS: Makers = {
    "pollux": pollux,
    "everybody": everybody,
    "itp": itp,
    "deadlines": deadlines,
    "mixed": mixed,
    "shared": shared,
    "spot": spot,
    "fairness": fairness,
    "guidelines": guidelines,
}

if __name__ == "__main__":
    sys.exit(rewrite(PAGE, MAKERS))
