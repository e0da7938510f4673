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
        return f"{row['mean_jct_s']:,.0f} s; {worst}; {row['unfair_share']:.0%}"

    lines = ((f"`{policy}`", *(cell(world, policy) for world in worlds)) for policy in policies)
    return table(("policy", *worlds), lines)


def guidelines() -> str:
    def lines() -> list[tuple[str, ...]]:
        return [
            (
                row["trace"],
                row["feature"],
                row["setting"],
                f"{row['mean_jct_s']:,.0f} s",
                f"{row['mean_queue_s']:,.0f} s",
                "" if row["feature"] == "locality" else f"{row['caught']:,} of {row['failed_trials']:,}",
                "" if row["feature"] == "locality" else f"{row['failed_device_h']:,.0f} h",
                f"{row['finished']:,.0f}",
            )
            for row in kept("simulate_guidelines")
        ]

    head = ("trace", "feature", "setting", "mean JCT", "queueing", "caught on one device", "in failed trials", "done")
    return table(head, lines())


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
    "itp": itp,
    "mixed": mixed,
    "shared": shared,
    "spot": spot,
    "fairness": fairness,
    "guidelines": guidelines,
}

if __name__ == "__main__":
    sys.exit(rewrite(PAGE, MAKERS))
