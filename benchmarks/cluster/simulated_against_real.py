"""One workload of 14 real jobs under four policies on two devices, and the same in the simulator: completion times.

Live: `isoscale serve --devices cpu*2 --pin`, recipes submitted when they arrive (`workload.csv`, sampled from a public
trace before the first run). Simulated: the same policies and requests, with speeds and costs measured beforehand: what
moves cost, once (`changes`); before each repetition every recipe alone and on both devices, before the first one also
beside every other (`pairs`). A repetition is simulated with its own profile. One state for everything: what the profile
has shown of each recipe's speed, the service knows too, also if the rest is measured later. Every digest must be the
same in all runs.

Targets: the simulated mean completion time within 10 % of the live one for each policy; policies in the same order
where they differ by more than the repetitions do.

    python -m benchmarks.cluster.simulated_against_real

`--again` simulates anew with the profiles of the kept result.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.cluster import live, simulated
from benchmarks.cluster.changes import measure_changes
from benchmarks.cluster.company import company
from benchmarks.cluster.pairs import Pairs
from benchmarks.cluster.profile import Changes, Speeds, as_row, changes_of, speeds_of
from benchmarks.cluster.workload import Job, read
from benchmarks.lib.measure import RESULTS, rounded
from benchmarks.lib.options import Options, parsed, parser
from benchmarks.lib.result import Row, Rows

RESULT, MINUTES = "simulated_against_real", 20
STARTS = ("isoscale.cluster", "isoscale.runtime", "isoscale.backends", "isoscale.cli.coordinate", "isoscale.cli.serve")
POLICIES = ("fifo", "elastic-tiresias(threshold_s=10,crowd=2)", "easyscale", "flow(pause_s=3)")
TARGET = 0.10


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
        state = Path(folder) / "c" if rows.folder is None or options.smoke else rows.folder / "c"
        if not rows.all():  # one of other code
            shutil.rmtree(state, ignore_errors=True)
        state.parent.mkdir(parents=True, exist_ok=True)
        _live(rows, options, workload, policies, repetitions, state)
        shutil.rmtree(state)
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
    for repetition in range(repetitions):
        if rows.find(kind="profile", policy="", repetition=repetition) is None:
            first = rows.find(kind="profile", policy="", repetition=0)
            with company() as others, live.served(state, "fifo", packed) as (service, client):
                seconds = options.pick(smoke=0.2, quick=2.0, full=8.0)
                before = None if first is None else speeds_of(first)
                speeds = Pairs(service, client, packed, seconds).measure(recipes, _say, before)
            _say(speeds.in_words())
            rows.put({**as_row("profile", repetition, speeds), "others": rounded(others.share)})
        if rows.find(kind="changes", policy="", repetition=0) is None:
            speeds = speeds_of(rows.all()[-1])
            rows.put(as_row("changes", 0, _changes(options, packed, speeds, state)))
        for policy in policies:
            if rows.find(kind="live", policy=policy, repetition=repetition) is not None:
                continue
            with company() as others, live.served(state, policy, packed) as (service, client):
                jobs = live.run(service, client, packed, workload)
            found = [asdict(job) for job in jobs]
            mean_s = mean(job.jct_s for job in jobs)
            rows.put(
                {
                    "kind": "live",
                    "policy": policy,
                    "repetition": repetition,
                    "mean_jct_s": rounded(mean_s),
                    "others": rounded(others.share),
                    "jobs": found,
                }
            )
            _say(f"live, {policy}: mean completion time {mean_s:.2f} s; others took {others.share:.1%} of the machine")


def _changes(options: Options, packed: live.Bundles, speeds: Speeds, state: Path) -> Changes:
    """Of the recipe that gains most by a second device: a policy gives none to one that is no faster on two."""
    recipe = max(speeds.alone_s, key=lambda one: speeds.alone_s[one] / speeds.both_s[one])
    grows = not options.smoke
    with live.served(state, "elastic-tiresias" if grows else "fifo", packed) as (service, client):
        times = options.pick(smoke=1, quick=1, full=3)
        return measure_changes(service, client, packed, recipe, times=times, grows=grows)


def summarise(rows: Sequence[Row], workload: Sequence[Job], policies: Sequence[str]) -> dict[str, Any]:
    """Per policy: live and simulated; and whether they agree on the order."""
    _check_digests(rows)
    changes = changes_of(next(row for row in rows if row["kind"] == "changes"))
    profiles = [simulated.Profile(speeds_of(row), changes) for row in rows if row["kind"] == "profile"]
    by_policy = {}
    for policy in policies:
        runs = [row for row in rows if row["kind"] == "live" and row["policy"] == policy]
        by_policy[policy] = _compared(runs, profiles, workload, policy)
    live_s = {policy: one["live_s"] for policy, one in by_policy.items()}
    simulated_s_ = {policy: one["simulated_s"] for policy, one in by_policy.items()}
    best = min(live_s, key=lambda policy: live_s[policy])
    return {
        "others_while_profiling": rounded(mean(row["others"] for row in rows if row["kind"] == "profile")),
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


def _compared(
    runs: Sequence[Row], profiles: Sequence[simulated.Profile], workload: Sequence[Job], policy: str
) -> dict[str, Any]:
    """One policy: every repetition against the simulation with its own profile."""
    lived = [[row["jobs"][number] for row in runs] for number in range(len(workload))]
    every = [simulated.run(workload, profile, policy) for profile in profiles]
    predicted = [[one[number] for one in every] for number in range(len(workload))]
    means = [row["mean_jct_s"] for row in runs]
    by_repetition = [mean(job.jct_s for job in one) for one in every]
    simulated_s = mean(by_repetition)
    return {
        "live_s": rounded(mean(means)),
        "live_least_s": min(means),
        "live_most_s": max(means),
        "live_rescales": rounded(mean(sum(job["rescales"] for job in row["jobs"]) for row in runs)),
        "live_wait_s": rounded(mean(job["wait_s"] for jobs in lived for job in jobs)),
        "simulated_s": rounded(simulated_s),
        "simulated_rescales": rounded(mean(sum(job.rescales for job in one) for one in every)),
        "simulated_wait_s": rounded(mean(job.wait_s for jobs in predicted for job in jobs)),
        "error": rounded(simulated_s / mean(means) - 1),
        "others": rounded(mean(row["others"] for row in runs)),
        "errors": [rounded(one / real - 1) for one, real in zip(by_repetition, means, strict=True)],
        "simulated_without_s": _without(profiles, workload, policy),
        "live_by_job_s": [rounded(mean(job["jct_s"] for job in jobs)) for jobs in lived],
        "simulated_by_job_s": [rounded(mean(job.jct_s for job in jobs)) for jobs in predicted],
    }


def _without(profiles: Sequence[simulated.Profile], workload: Sequence[Job], policy: str) -> dict[str, Any]:
    """Means if one thing had not been measured."""

    def mean_s(what: str) -> float:
        every = [simulated.run(workload, profile.less()[what], policy, phases=5) for profile in profiles]
        return mean(job.jct_s for one in every for job in one)

    return {what: rounded(mean_s(what)) for what in profiles[0].less()}


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
        errors = ", ".join(f"{error:+.1%}" for error in one["errors"])
        without = ", ".join(f"{what} {seconds:.1f}" for what, seconds in one["simulated_without_s"].items())
        _say(
            f"    by repetition {errors}; waiting {one['live_wait_s']:.1f} s live, "
            f"{one['simulated_wait_s']:.1f} simulated; others took {one['others']:.1%}"
        )
        _say(f"    simulated without {without}")
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
