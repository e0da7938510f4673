"""Rows of docs/claims.md from the results of the elastic benchmarks: what, target, measured, verdict."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.elastic.commits import step_seconds
from benchmarks.lib.claims import Parts, Result, Row, verdict


def elastic(result: Result) -> Iterator[Row]:
    """Targets first, then what each system did in each scenario."""
    for target in result["targets"]:
        if not target["for_information"]:
            measured = f"{target['value']:g} (worst of {result['repetitions']}: {target['worst']:g})"
            yield f"{target['what']}, {target['model']}", target["target"], measured, verdict(target["meets"])
    for entry in result["summary"]:
        if "gap_s" in entry:
            gap, step = entry["gap_s"], step_seconds(entry)
            lost, whole = entry["lost_steps"]["max"], entry["runs"] - entry["failed"]
            yield (
                f"{entry['system']}, {entry['scenario']}, {entry['model']}",
                "",
                f"gap {gap['median']:.3f} s ({gap['min']:.3f}-{gap['max']:.3f}), a step {step:.3f} s, gap less one "
                f"step {gap['median'] - step:.3f} s; at most {lost:g} committed steps lost; "
                f"digest of the undisturbed run in {entry['same_digest']} of {whole}",
                f"{entry['failed']} of {entry['runs']} did not recover" if entry["failed"] else "",
            )
        elif entry["failed"]:
            what = f"{entry['system']}, {entry['scenario']}, {entry['model']}"
            yield what, "", "", f"{entry['failed']} of {entry['runs']} did not recover"


def elastic_unequal(result: Result) -> Iterator[Row]:
    for row in result["rows"]:
        where = f"8 logical workers on a normal and a {row['times_slower']:.1f}x slower executor, {row['model']}"
        split = " and ".join(map(str, row["settled_splits"][-1]))
        yield (
            f"{where}: throughput over the even split's",
            "at least 1.5",
            f"{row['over_even']:.2f} (split {split})",
            verdict(row["meets_even"]),
        )
        yield (
            f"{where}: of what the planner predicts",
            "at least 0.95",
            f"{row['of_predicted']:.2f}",
            verdict(row["meets_predicted"]),
        )


def elastic_steady(result: Result) -> Iterator[Row]:
    for row in result["rows"]:
        yield (
            f"step over the static core's, N = {row['workers']} on {row['executors']} executors, {row['model']}",
            f"at most {row['limit']:.2f}x",
            f"{row['ratio']:.4f}x +- {row['half_width']:.4f} ({row['pairs']} pairs of steps)",
            verdict(row["meets"]),
        )


def elastic_checkpoint(result: Result) -> Iterator[Row]:
    for row in result["rows"]:
        if row["what"] == "blocked":
            yield (
                f"a checkpoint blocks the step loop, {row['state_mb']:.0f} MB of state, {row['model']}",
                f"at most one copy: {row['copy_ms']:.1f} ms",
                f"{row['blocked_ms']:.1f} ms",
                verdict(row["meets"]),
            )
        else:
            yield (
                f"step time with a checkpoint every {result['every_s']:g} s over none, both cores busy, {row['model']}",
                f"at most {row['limit']:.2f}x",
                f"{row['ratio']:.4f}x +- {row['half_width']:.4f}",
                verdict(row["meets"]),
            )


def elastic_executors(result: Result) -> Iterator[Row]:
    for row in result["rows"]:
        yield (
            f"tiny model, {row['from']} -> {row['to']} executors on 2 cores",
            "",
            f"gap {row['gap_s']:.2f} s (steps {row['step_before_s']:.2f} -> {row['step_after_s']:.2f} s), "
            f"pause {row['pause_s']:.3f} s, ready after {row['ready_s']:.1f} s",
            "",
        )
    yield "digest after all of these", "that of one executor", "", verdict(result["same_digest"])


#: what starting was measured with, by the name of the variant
_STARTED = {
    "kept": "warm parents that `isoscale warm` had ready",
    "warm": "a warm parent of the run's own",
    "spawned": "every process afresh",
}


def elastic_start(result: Result) -> Iterator[Row]:
    for entry in result["summary"]:
        # Starting afresh stands there for comparison.
        is_judged = entry["limit_s"] is not None and entry["started"] != "spawned"
        yield (
            f"{entry['what']}, {entry['model']}, {_STARTED[entry['started']]}",
            f"at most {entry['limit_s']:g} s" + ("" if entry["what"] == "first step" else " plus one step")
            if is_judged
            else "",
            f"{entry['less_one_step_s']:.3f} s ({entry['min']:.3f}-{entry['max']:.3f}, {entry['times']} times)",
            verdict(entry["meets"]) if is_judged else "",
        )


PARTS: Parts = {
    "elastic": elastic,
    "elastic_unequal": elastic_unequal,
    "elastic_steady": elastic_steady,
    "elastic_checkpoint": elastic_checkpoint,
    "elastic_executors": elastic_executors,
    "elastic_start": elastic_start,
}
