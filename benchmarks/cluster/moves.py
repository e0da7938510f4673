"""How soon a job takes its first step, and how soon a decision is carried out: a device moves between two that train.

From submission to the first step: under 3 s on an idle cluster, once warm processes are there. A move counts from the
first decision about either job, as the service's events tell it, until both train on what was decided: within a step of
each plus 1 s. Three devices on however many cores there are: turns of these jobs wait, they do not compute.

    python -m benchmarks.cluster.moves
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.cluster.served import Served, serve, until
from benchmarks.lib.measure import percentile, rounded
from benchmarks.lib.options import Options, options
from benchmarks.lib.result import Rows
from isoscale.protocol.events import read_events

RESULT, MINUTES = "cluster_moves", 3
STARTS = ("isoscale.cluster", "isoscale.runtime", "isoscale.backends", "isoscale.cli.coordinate", "isoscale.cli.serve")


def main() -> None:
    chosen = options(__doc__)
    rows = Rows(RESULT, chosen, ("what",))
    for name, measure in (("start", _starts), ("move", _moves)):
        if rows.find(what=name) is None:
            rows.put({"what": name, **measure(chosen)})
            print(rows.all()[-1], flush=True)
    rows.finish()


def _starts(options: Options) -> dict[str, Any]:
    count = options.pick(smoke=1, quick=5, full=20)
    seconds = []
    with serve() as served:
        _first_step_s(served)  # the keeper of warm processes imports torch meanwhile
        for number in range(count):
            seconds.append(_first_step_s(served))
            print(f"start {number + 1} of {count}: {seconds[-1]:.2f} s", flush=True)
    worst = max(seconds)
    facts = {"jobs": count, "median_s": rounded(percentile(seconds, 50)), "worst_s": rounded(worst)}
    return {**facts, "all_s": [rounded(one) for one in seconds], "limit_s": 3.0, "meets": worst < 3.0}


def _first_step_s(served: Served) -> float:
    """By the job's own log, on the clock of the same machine."""
    begun = time.time()
    job = served.submit("1", "0.01")
    assert served.client.wait(job, 120).state == "finished"
    events = read_events(served.state / "jobs" / job / "events.jsonl")
    return next(float(event["t"]) for event in events if event["event"] == "step") - begun


def _moves(options: Options) -> dict[str, Any]:
    count = options.pick(smoke=1, quick=4, full=20)
    over_s, seconds, giving_s = [], [], []
    with serve(devices="cpu*3") as served:
        one, other = (served.submit("100000", "0.2", workers=2) for _ in range(2))
        until(lambda: served.client.job(one).step > 5 and served.client.job(other).step > 5, "both train")
        for number in range(count):
            giver, taker = (one, other) if number % 2 else (other, one)
            for job, most in ((taker, 1), (giver, 0)):
                served.client.scale(job, most)
            served.until_training(giver, 2)
            served.until_training(taker, 1)
            time.sleep(options.pick(smoke=0.2, quick=2.0, full=2.0))
            shown = [served.client.job(job) for job in (giver, taker)]
            steps_s = sum(1.0 / job.steps_per_s for job in shown if job.steps_per_s)
            marks = {job: served.client.job_events(job)[-1].id for job in (giver, taker)}
            served.client.scale(taker, 0)
            served.client.scale(giver, 1)
            served.until_training(giver, 1)
            served.until_training(taker, 2)
            given_s, taken_s = _carried_out_s(served, giver, taker, marks)
            giving_s.append(given_s)
            seconds.append(max(given_s, taken_s))
            over_s.append(seconds[-1] - steps_s)
            print(
                f"move {number + 1} of {count}: {seconds[-1]:.2f} s, of it {given_s:.2f} until it was given; "
                f"a step of each {steps_s:.2f} s",
                flush=True,
            )
    facts = {
        "moves": count,
        "median_s": rounded(percentile(seconds, 50)),
        "worst_s": rounded(max(seconds)),
        "all_s": [rounded(one) for one in seconds],
        "all_given_s": [rounded(one) for one in giving_s],
        "all_beyond_steps_s": [rounded(one) for one in over_s],
    }
    worst = max(over_s)
    return {**facts, "worst_beyond_steps_s": rounded(worst), "limit_s": 1.0, "meets": worst < 1.0}


def _carried_out_s(served: Served, giver: str, taker: str, marks: dict[str, int]) -> tuple[float, float]:
    """From the first decision about either to where each trains on what it shall have."""
    events = {job: served.client.job_events(job, after=marks[job]) for job in (giver, taker)}
    decided = min(event.t for found in events.values() for event in found if event.event == "job_resized")
    run = [max(event.t for event in events[job] if event.event == "job_running") for job in (giver, taker)]
    return run[0] - decided, run[1] - decided


if __name__ == "__main__":
    main()
