"""One workload of 14 real jobs under four policies on two devices, and the same in the simulator: completion times.

Live: `isoscale serve --devices cpu*2 --pin`, recipes submitted when they arrive (`workload.csv`, sampled from a public
trace before the first run). Simulated: the same policies and requests, with speeds and costs measured beforehand
(`profile`), among them what a neighbour on the other core costs. One state for everything: what the profile has shown
of each recipe's speed, the service knows too. Every digest must be the same in all runs.

Targets: the simulated mean completion time within 10 % of the live one for each policy; policies in the same order
where they differ by more than the repetitions do.

    python -m benchmarks.cluster.simulated_against_real

`--again` simulates anew with the profile of the kept result.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, fields
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.cluster import live, simulated
from benchmarks.cluster.profile import Profile, measure_changes, measure_speeds
from benchmarks.cluster.workload import Job, read
from benchmarks.lib.measure import RESULTS, rounded
from benchmarks.lib.options import Options, parsed, parser
from benchmarks.lib.result import Row, Rows

RESULT, MINUTES = "simulated_against_real", 25
STARTS = ("isoscale.cluster", "isoscale.runtime", "isoscale.backends", "isoscale.cli.coordinate", "isoscale.cli.serve")
POLICIES = ("fifo", "elastic-tiresias(threshold_s=10,crowd=2)", "easyscale", "flow(pause_s=3)")
TARGET = 0.10
#: whose devices are changed for the profile: one that is faster on two
_CHANGED = "balanced_lstm"


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--again", action="store_true", help="no live run: simulate anew for the kept result")
    made.add_argument("--repetitions", type=int, default=3)
    options = parsed(made)
    if options.again:
        _again()
        return
    workload = read()
    policies = options.pick(smoke=POLICIES[-1:], quick=POLICIES, full=POLICIES)
    repetitions = options.pick(smoke=1, quick=1, full=options.repetitions)
    if options.smoke:
        workload = [Job("neumf-0", "neumf", 0.0, 20, 2), Job("neumf-1", "neumf", 0.5, 10, 1)]
    rows = Rows(RESULT, options, ("kind", "policy", "repetition"))
    with tempfile.TemporaryDirectory(prefix="isc-") as folder:
        _live(rows, options, workload, policies, repetitions, Path(folder) / "c")
    if options.smoke:
        _check_digests(rows.all())
        return
    summary = summarise(rows.all(), workload, policies)
    _show(summary)
    rows.finish(summary=summary)


def _live(
    rows: Rows, options: Options, workload: Sequence[Job], policies: Sequence[str], repetitions: int, state: Path
) -> None:
    recipes = list(dict.fromkeys(job.recipe for job in workload))
    packed = live.bundles([*recipes, "neumf"])
    if rows.find(kind="profile", policy="", repetition=0) is None:
        rows.put(_profile(options, packed, recipes, state).as_row())
    for repetition in range(repetitions):
        for policy in policies:
            if rows.find(kind="live", policy=policy, repetition=repetition) is not None:
                continue
            with live.served(state, policy, packed) as (_, client):
                jobs = live.run(client, packed, workload)
            found = [asdict(job) for job in jobs]
            mean_s = mean(job.jct_s for job in jobs)
            rows.put(
                {
                    "kind": "live",
                    "policy": policy,
                    "repetition": repetition,
                    "mean_jct_s": rounded(mean_s),
                    "jobs": found,
                }
            )
            _say(f"live, {policy}: mean completion time {mean_s:.2f} s")


def _profile(options: Options, packed: live.Bundles, recipes: Sequence[str], state: Path) -> Profile:
    with live.served(state, "fifo", packed) as (service, client):
        seconds = options.pick(smoke=0.2, quick=3.0, full=5.0)
        speeds = measure_speeds(service, client, packed, recipes, seconds, _say)
        if options.smoke:
            changes = measure_changes(service, client, packed, recipes[0], times=1, grows=False)
    if not options.smoke:
        with live.served(state, "elastic-tiresias", packed) as (service, client):
            changes = measure_changes(service, client, packed, _CHANGED, times=3, grows=True)
    profile = Profile(*speeds, **changes)
    _say(profile.in_words())
    return profile


def summarise(rows: Sequence[Row], workload: Sequence[Job], policies: Sequence[str]) -> dict[str, Any]:
    """Per policy: live and simulated; and whether they agree on the order."""
    _check_digests(rows)
    found = next(row for row in rows if row["kind"] == "profile")
    profile = Profile(**{one.name: found[one.name] for one in fields(Profile)})
    by_policy = {}
    for policy in policies:
        runs = [row for row in rows if row["kind"] == "live" and row["policy"] == policy]
        means = [row["mean_jct_s"] for row in runs]
        predicted = simulated.run(workload, profile, policy)
        simulated_s = mean(job.jct_s for job in predicted)
        by_policy[policy] = {
            "live_s": rounded(mean(means)),
            "live_least_s": min(means),
            "live_most_s": max(means),
            "live_rescales": rounded(mean(sum(job["rescales"] for job in row["jobs"]) for row in runs)),
            "simulated_s": rounded(simulated_s),
            "simulated_rescales": rounded(sum(job.rescales for job in predicted)),
            "error": rounded(simulated_s / mean(means) - 1),
            "live_by_job_s": [
                rounded(mean(row["jobs"][number]["jct_s"] for row in runs)) for number in range(len(workload))
            ],
            "simulated_by_job_s": [rounded(job.jct_s) for job in predicted],
        }
    live_s = {policy: one["live_s"] for policy, one in by_policy.items()}
    simulated_s_ = {policy: one["simulated_s"] for policy, one in by_policy.items()}
    best = min(live_s, key=lambda policy: live_s[policy])
    return {
        "interference": rounded(profile.interference),
        "jobs": [job.name for job in workload],
        "policies": by_policy,
        "within": max(abs(one["error"]) for one in by_policy.values()),
        "pairs_apart": [
            [one, other] for one, other in combinations(policies, 2) if _are_apart(by_policy[one], by_policy[other])
        ],
        "pairs_disagree": [
            [one, other]
            for one, other in combinations(policies, 2)
            if _are_apart(by_policy[one], by_policy[other])
            and (live_s[one] < live_s[other]) != (simulated_s_[one] < simulated_s_[other])
        ],
        "best": best,
        "best_over_fifo_live": rounded(live_s[best] / live_s["fifo"]),
        "best_over_fifo_simulated": rounded(simulated_s_[best] / simulated_s_["fifo"]),
    }


def _are_apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """By more than their repetitions differ."""
    return bool(one["live_most_s"] < other["live_least_s"] or other["live_most_s"] < one["live_least_s"])


def _check_digests(rows: Sequence[Row]) -> None:
    """No policy, repetition or company changes a job's bits."""
    digests: dict[str, set[str]] = {}
    for row in rows:
        for job in row.get("jobs", ()):
            digests.setdefault(job["name"], set()).add(job["digest"])
    different = [name for name, found in digests.items() if len(found) != 1 or "" in found]
    if different:
        raise SystemExit(f"digests differ: {', '.join(different)}")
    _say(f"{sum(len(row.get('jobs', ())) for row in rows)} jobs, {len(digests)} digests: each job has one")


def _show(summary: dict[str, Any]) -> None:
    for policy, one in summary["policies"].items():
        _say(
            f"{policy:42} live {one['live_s']:6.2f} s ({one['live_least_s']:.1f} to {one['live_most_s']:.1f}), "
            f"simulated {one['simulated_s']:6.2f} s, {100 * one['error']:+.1f} %; changes {one['live_rescales']:g} and "
            f"{one['simulated_rescales']:g}"
        )
    _say(
        f"best over fifo: {summary['best']}, live {summary['best_over_fifo_live']:.3f}, simulated "
        f"{summary['best_over_fifo_simulated']:.3f}; pairs in another order: {summary['pairs_disagree'] or 'none'}"
    )


def _again() -> None:
    path = RESULTS / f"{RESULT}.json"
    kept = json.loads(path.read_text())
    kept["summary"] = summarise(kept["rows"], read(), POLICIES)
    _show(kept["summary"])
    path.write_text(json.dumps(kept, indent=1) + "\n")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
