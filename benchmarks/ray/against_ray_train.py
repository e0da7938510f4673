"""isoscale and Ray Train (elastic) on the same Ray cluster: how long does training stand still when nodes change?

A cluster of nodes with one CPU each on this machine, the 6.5 MB convolutional net with SGD and momentum, one thread per
worker. Every worker writes a line per committed step; from these come the longest gap between two committed steps from
the event on, committed steps lost, and whether the final parameters are those of the undisturbed run of the same system
on two nodes; isoscale's must be those of an undisturbed run without Ray, too. Scenarios: `scale out`, a second node
joins; `scale in`, a node of two is announced to go and is gone 15 s later; `kill`, `kill -9` of one worker of two.
isoscale is told of the new node by `isoscale scale`; Ray Train looks for itself, here every 5 s, at what its cluster's
coordinator knows, which itself looks every 20 s. So Ray Train's runs are longer, by as many steps as the speed of the
machine asks for: they have to meet the change before they are done.

Then isoscale on two Ray nodes beside isoscale on the same two cores without Ray: throughput of jobs that train in turn,
and the time from `isoscale scale 2` until both train, by a job that has been left alone for some seconds before.

    python -m benchmarks.ray.against_ray_train
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.elastic.commits import median_step
from benchmarks.elastic.gaps import References, digest_of, final_parameters, measured
from benchmarks.elastic.gate import SCRIPT, Side, interleaved
from benchmarks.elastic.job import NotReachedError, job
from benchmarks.elastic.start import scaled
from benchmarks.elastic.systems import IsoscaleRun, Run
from benchmarks.lib.measure import ratio_of
from benchmarks.lib.models import PACED, workload
from benchmarks.lib.options import Options, options
from benchmarks.lib.result import Rows
from benchmarks.ray.cluster import Nodes, nodes

RESULT, MINUTES = "against_ray_train", 11
STARTS = ("benchmarks.peers.ray_train", "isoscale.backends")

CONSTANT = "constant 2"
SCENARIOS = ("scale out", "scale in", "kill")
#: by workload: the step at which the event comes
EVENTS = {0: 40, PACED: 8}
LIMIT_S = 240.0
DRAIN_S = 15
#: how long Ray Train has to train on after an event to meet it: 20 s until its coordinator looks, 5 s until it asks,
#: the start of a node, and some steps
MEET_S = 45.0
#: from the last change on, until isoscale has a spare actor again
SPARE_S = 6.0
#: how long its driver may take to give back what it has reserved
LEAVE_S = 30.0
#: what must be reached
GAP_RATIO, THROUGHPUT, SLOWER_S = 10.0, 0.98, 1.0


#: steps of a run of isoscale in all, by workload
STEPS = {0: 200, PACED: 40}


class OnRay(IsoscaleRun):
    name = "isoscale on Ray"
    cluster: Nodes

    def start(self, size: int, *, constant: bool) -> None:
        self.options = on_ray(self.cluster)
        super().start(size, constant=constant)

    def act(self, scenario: str) -> None:
        if scenario == "scale in":
            last = self.job.members()[-1]
            known = json.loads((self.job.out / "control" / "executors.json").read_text())
            name = known[last]["device"].partition("/")[0]
            self.cluster.drain(next(one for one in self.cluster.all if self.cluster.holding(one) == name), DRAIN_S)
            return
        if scenario == "scale out":
            self.cluster.have(2)
        super().act(scenario)


class RayTrain(Run):
    name = "Ray Train"
    cluster: Nodes

    def start(self, size: int, *, constant: bool) -> None:
        command = [sys.executable, "-m", "benchmarks.peers.ray_train", *self._arguments]
        command += ["--address", self.cluster.address, "--least", str(size if constant else 1)]
        self._trainers = [self._spawn(command, "driver.log")]

    def act(self, scenario: str) -> None:
        if scenario == "scale out":
            self.cluster.have(2)
        elif scenario == "scale in":
            self.cluster.drain(self.cluster.all[-1], DRAIN_S)
        elif scenario == "kill":
            newest = max(self.commits_folder.glob("commits-*.txt"), key=lambda path: path.stat().st_mtime)
            os.kill(int(newest.stem.removeprefix("commits-")), signal.SIGKILL)

    def _worker_pids(self) -> list[int]:
        """Ray ends the workers of a driver that is gone."""
        return []

    def end(self) -> None:
        """In good order: what a driver that is killed has reserved is kept from the next run for three minutes."""
        for driver in self._trainers:
            if not (self.commits_folder / "final.pt").exists():
                driver.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(LEAVE_S)
        super().end()


def on_ray(cluster: Nodes) -> tuple[str, ...]:
    return ("--backend", "ray", "--address", cluster.address)


def steps_of_ray_train(number: int, rows: Rows) -> int:
    """One worker of Ray Train takes about as long for a step as two executors, each with one of two turns."""
    alone = rows.find(system=IsoscaleRun.name, scenario=CONSTANT) or {}
    if "step_before_s" not in alone:
        raise NotReachedError("no undisturbed run of isoscale, by whose speed the length is chosen")
    return EVENTS[number] + math.ceil(MEET_S / alone["step_before_s"])


def run_once(kind: type[Run], scenario: str, number: int, steps: int, cluster: Nodes, folder: Path) -> dict[str, Any]:
    constant, size = scenario == CONSTANT, 1 if scenario == "scale out" else 2
    cluster.start_afresh(size)
    kind.cluster = cluster  # type: ignore[attr-defined]
    run = kind(folder, number, steps)
    row: dict[str, Any] = {"model": workload(number).name, "system": kind.name, "scenario": scenario, "steps": steps}
    try:
        run.start(size, constant=constant)
        if not constant:
            run.wait_step(EVENTS[number], size, LIMIT_S)
            event_t = time.time()
            run.act(scenario)
            row["acting_s"] = round(time.time() - event_t, 3)  # mostly Ray's: a node starts, or is told to go
        final = final_parameters(run.wait_end(LIMIT_S))
        row |= {"digest": digest_of(final), "_final": final}
        row |= {"step_before_s": median_step(run.commits()[10:])} if constant else measured(run, event_t)
        if scenario.startswith("scale") and row["size_after"] == row["size_before"]:
            raise NotReachedError(f"it trained on with {row['size_before']}")
    except (NotReachedError, ValueError) as error:
        row["failed"] = str(error)[-400:]
    finally:
        run.end()
    return row


def comparison(found: Options, cluster: Nodes, folder: Path, rows: Rows) -> None:
    number = found.pick(smoke=PACED, quick=0, full=0)
    references = References(rows.folder or folder / "references")
    systems: tuple[type[Run], ...] = (OnRay, RayTrain)
    plan: list[tuple[type[Run], str]] = [(IsoscaleRun, CONSTANT)]
    if found.smoke:
        plan.append((OnRay, "kill"))
    else:
        plan += [(kind, scenario) for scenario in (CONSTANT, *SCENARIOS) for kind in systems]
    for kind, scenario in plan:
        if rows.find(system=kind.name, scenario=scenario) is not None:
            continue
        place = folder / f"{kind.__name__}-{scenario}".replace(" ", "-")
        steps = steps_of_ray_train(number, rows) if kind is RayTrain else STEPS[number]
        row = run_once(kind, scenario, number, steps, cluster, place)
        references.compare(row)
        rows.put(row)
        gap = f"gap {row['gap_s']:.2f} s, {row['lost_steps']} steps lost" if "gap_s" in row else ""
        print(
            f"{row['system']:16} {scenario:10} {row.get('failed') or gap}  same bits: {row.get('same_digest')}",
            flush=True,
        )


def throughput(found: Options, cluster: Nodes, folder: Path, rows: Rows) -> None:
    if rows.find(system="throughput", scenario="two Ray nodes over local") is not None:
        return
    cluster.start_afresh(2)
    number = found.pick(smoke=PACED, quick=0, full=0)
    plain = Side(2, 2)
    # A smoke run spares the third job.
    sides = {"a": plain, "b": Side(2, 2, options=on_ray(cluster))} | ({} if found.smoke else {"control": plain})
    blocks, rounds = found.pick(smoke=(1, 1), quick=(1, 4), full=(2, 6))
    times = interleaved(sides, number, folder, blocks=blocks, rounds=rounds, steps=10)
    ratio = ratio_of(times | {"control": times.get("control", times["a"])})
    row = {"system": "throughput", "scenario": "two Ray nodes over local", "ratio": round(1 / ratio.ratio, 4)}
    rows.put(row | {"half_width": ratio.half_width, "control": ratio.control})
    print(f"throughput on two Ray nodes over local: {row['ratio']} +- {ratio.half_width}", flush=True)


def latency(found: Options, cluster: Nodes, folder: Path, rows: Rows) -> None:
    """From `isoscale scale 2` until a step of both, with a warm parent on every node."""
    number, sides = PACED, {"local": (), "Ray": on_ray(cluster)}
    for name, extra in sides.items():
        if rows.find(system="scale-out latency", scenario=name) is not None:
            continue
        cluster.have(2)
        arguments = ["--workload", number, "--steps", 10**6, "--commits", folder / f"{name}-commits"]
        with job(SCRIPT, folder / f"{name}-run", workers=2, executors=1, options=extra, script_args=arguments) as one:
            one.wait_step(8)
            if not found.smoke:
                time.sleep(8.0)  # until every node has imported torch
            taken = []
            for _ in range(found.pick(smoke=1, quick=2, full=5)):
                time.sleep(SPARE_S)
                taken.append(scaled(one, 2)[1])
                scaled(one, 1)
        row = {"system": "scale-out latency", "scenario": name, "seconds": round(statistics.median(taken), 3)}
        rows.put(row | {"all": [round(value, 3) for value in taken]})
        print(f"1 -> 2 on {name}: {row['seconds']} s", flush=True)


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by = {(row["system"], row["scenario"]): row for row in rows}
    found = []
    for scenario in SCENARIOS:
        ours, theirs = by.get((OnRay.name, scenario), {}), by.get((RayTrain.name, scenario), {})
        if "gap_s" in ours and "gap_s" in theirs:
            value = theirs["gap_s"] / ours["gap_s"]
            what = f"gap of Ray Train over isoscale's, {scenario}"
            found.append({"what": what, "target": f">= {GAP_RATIO:g}", "value": value, "meets": value >= GAP_RATIO})
    ours_all = [row for row in rows if row["system"] == OnRay.name]
    if (alone := by.get((IsoscaleRun.name, CONSTANT), {}).get("digest")) and ours_all:
        others = sum(row.get("digest") != alone for row in ours_all)
        found.append({"what": "runs on Ray with other bits", "target": "0", "value": others, "meets": others == 0})
        lost = sum(row.get("lost_steps", 0) for row in ours_all)
        found.append({"what": "committed steps lost on Ray", "target": "0", "value": lost, "meets": lost == 0})
    if speed := by.get(("throughput", "two Ray nodes over local")):
        value = speed["ratio"]
        found.append({"what": "throughput", "target": f">= {THROUGHPUT}", "value": value, "meets": value >= THROUGHPUT})
    local, ray = (by.get(("scale-out latency", name)) for name in ("local", "Ray"))
    if local and ray:
        value = ray["seconds"] - local["seconds"]
        found.append(
            {
                "what": "scale-out later than local, s",
                "target": f"<= {SLOWER_S:g}",
                "value": value,
                "meets": value <= SLOWER_S,
            }
        )
    return found


def main() -> None:
    found = options(__doc__)
    rows = Rows(RESULT, found, ("system", "scenario"))
    with tempfile.TemporaryDirectory() as temporary, nodes() as cluster:
        folder = Path(temporary).resolve()
        if not found.smoke:
            latency(found, cluster, folder / "latency", rows)
            throughput(found, cluster, folder / "throughput", rows)
        comparison(found, cluster, folder, rows)
    reached = targets(rows.all())
    for target in reached:
        print(
            f"{target['what']:50} {target['target']:8} {target['value']:.3f} {'met' if target['meets'] else 'MISSED'}"
        )
    rows.finish(targets=reached)
    if found.smoke and (failed := [row for row in rows.all() if "failed" in row]):
        raise SystemExit(f"did not come through: {failed}")


if __name__ == "__main__":
    main()
