"""How long starting takes: a job's first step, a newcomer, a scale-out to four while it trains, and a replacement.

One real `isoscale run` per repetition, told from outside what to do (`isoscale scale`, `kill -9`) and timed by its own
event log:

- `first step`: from the start of the command to the first committed step;
- `newcomer`: from the request for a second executor until it trains; the tiny model rests most of the time, so the
  machine is idle beside it;
- `scale 1 -> 4`: from the request until a step is committed by all four;
- `replacement`: from `kill -9` of one of four until a step is committed by four again.

The last three can only happen between steps, so the step of that moment is taken off: the longer of the median steps
before and after, without the step that is done again after the kill: it is long because of what is measured. Processes
come in three ways: `kept`, forked from warm parents that `isoscale warm` had ready; `warm`, forked from one that the
run starts itself; `spawned`, each afresh (`--no-warm`, for comparison, in the first repetition only).

    python -m benchmarks.elastic.start
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.elastic.gate import SCRIPT
from benchmarks.elastic.job import IsoscaleJob, job, variables, wait_for
from benchmarks.lib.models import PACED, workload
from benchmarks.lib.options import parsed, parser
from benchmarks.lib.result import Rows
from isoscale import env
from isoscale.backends.local import training_environment
from isoscale.backends.warm import UnavailableError
from isoscale.backends.warm_sharing import Lender
from isoscale.kinds import profile_of

RESULT, MINUTES = "elastic_start", 7
WORKERS = 4
#: seconds at most, beside a step
LIMITS_S = {"first step": 1.5, "newcomer": 0.5, "scale 1 -> 4": 1.0, "replacement": 1.0}
#: steps between two things that happen
_CALM = 8

Event = dict[str, Any]


# ---- from events to seconds ----


def first_step_s(events: Sequence[Event], launched_t: float) -> float:
    return float(next(event["t"] for event in events if event["event"] == "step")) - launched_t


def until_size_s(events: Sequence[Event], asked_t: float, size: int, redone: int = 0) -> tuple[float, float]:
    """From a moment to the first step that was committed by so many; and the same less the step of that moment. So many
    steps are done again first."""
    after = [event for event in events if event["event"] == "step" and event["t"] > asked_t]
    before = [event["seconds"] for event in events if event["event"] == "step" and event["t"] <= asked_t]
    there = next(event for event in after if event["executors"] == size)
    meanwhile = [event["seconds"] for event in after if event["t"] < there["t"]][redone:]
    total = float(there["t"]) - asked_t
    step_s = max(statistics.median(part) for part in (before[-_CALM:], meanwhile or before[-_CALM:]))
    return total, max(0.0, total - step_s)


def request_t(events: Sequence[Event], after_t: float) -> float:
    """When the coordinator got the next request: how long the command itself takes to start does not count."""
    return float(next(event["t"] for event in events if event["event"] == "request" and event["t"] >= after_t))


# ---- one job ----


def run_once(number: int, folder: Path, options: Sequence[str], most: int) -> list[dict[str, Any]]:
    """Everything that happens to one job; a newcomer alone only if that is not the whole scale-out."""
    # So many steps that it does not end by itself.
    arguments = ["--workload", number, "--steps", 10**6, "--commits", folder / "commits"]
    with job(SCRIPT, folder / "run", workers=WORKERS, executors=1, options=options, script_args=arguments) as one:
        one.wait_step(_CALM)
        found = {"first step": (first_step_s(one.events.read(), one.started_t),) * 2}
        if most > 2:
            found["newcomer"] = scaled(one, 2)
            scaled(one, 1)
        found[f"scale 1 -> {most}"] = scaled(one, most)
        found["replacement"] = replaced(one, most)
    return [
        {"what": what, "seconds": round(total, 4), "less_one_step_s": round(less, 4)}
        for what, (total, less) in found.items()
    ]


def scaled(one: IsoscaleJob, size: int) -> tuple[float, float]:
    asked_t = time.time()
    one.command("scale", size)
    one.wait_size(size, 120.0)
    one.wait_step(one.step() + _CALM)
    events = one.events.read()
    return until_size_s(events, request_t(events, asked_t), size)


def replaced(one: IsoscaleJob, size: int) -> tuple[float, float]:
    victim = one.pids()[one.members()[-1]]
    killed_t = time.time()
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: _is_complete_again(one.events.read(), killed_t, size), 120.0, "a replacement")
    one.wait_step(one.step() + _CALM)
    return until_size_s(without_the_sealed(one.events.read(), killed_t), killed_t, size, redone=1)


def _is_complete_again(events: Sequence[Event], killed_t: float, size: int) -> bool:
    lost = _lost_t(events, killed_t)
    return lost is not None and any(
        event["event"] == "step" and event["t"] > lost and event["executors"] == size for event in events
    )


def _lost_t(events: Sequence[Event], killed_t: float) -> float | None:
    return next((event["t"] for event in events if event["event"] == "executor_lost" and event["t"] >= killed_t), None)


def without_the_sealed(events: Sequence[Event], killed_t: float) -> list[Event]:
    """Without steps that all had sealed already when one of them was killed, before anybody noticed."""
    lost = _lost_t(events, killed_t) or killed_t
    return [event for event in events if event["event"] != "step" or not killed_t < event["t"] <= lost]


# ---- all of them ----


#: how processes are started, and the options for it
VARIANTS: dict[str, tuple[str, ...]] = {"kept": (), "warm": (), "spawned": ("--no-warm",)}


@contextlib.contextmanager
def keeper(wanted: bool) -> Iterator[None]:
    """Warm parents that are ready before anything is timed; or a place where nobody is."""
    with tempfile.TemporaryDirectory() as temporary:
        os.environ[env.WARM_DIRECTORY] = temporary
        if not wanted:
            yield
            return
        program = str(Path(sys.executable).with_name("isoscale"))
        with subprocess.Popen([program, "warm"], stderr=subprocess.DEVNULL) as process:
            wait_for(lambda: _is_ready(Path(temporary)), 120.0, "warm parents")
            yield
            process.terminate()


def _is_ready(directory: Path) -> bool:
    try:
        parent = Lender(directory).borrow(training_environment({}, profile_of("cpu"), 1))
    except UnavailableError:
        return False
    wait_for(lambda: parent.is_ready, 120.0, "imports")
    parent.close()
    return True


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians and extremes by model, variant and what happened."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        for one in row["times"]:
            groups.setdefault((row["model"], row["started"], one["what"]), []).append(one)
    found = []
    for (model, started, what), group in groups.items():
        less = [one["less_one_step_s"] for one in group]
        limit = LIMITS_S.get(what)
        entry: dict[str, Any] = {"model": model, "started": started, "what": what, "times": len(group)}
        entry |= {"seconds": round(statistics.median(one["seconds"] for one in group), 3)}
        entry |= {"less_one_step_s": round(statistics.median(less), 3), "min": min(less), "max": max(less)}
        found.append(entry | {"limit_s": limit, "meets": None if limit is None else entry["less_one_step_s"] <= limit})
    return found


def line(entry: dict[str, Any]) -> str:
    verdict = "" if entry["meets"] is None else "  met" if entry["meets"] else "  MISSED"
    return (
        f"{entry['model']:18} {entry['started']:8} {entry['what']:14} {entry['seconds']:7.3f} s, less one step "
        f"{entry['less_one_step_s']:7.3f} s ({entry['min']:.3f}-{entry['max']:.3f}, {entry['times']} times)"
        + (f"  at most {entry['limit_s']} s{verdict}" if entry["limit_s"] is not None else "")
    )


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--repetitions", type=int, default=5)
    options = parsed(made)
    os.environ |= variables()  # what is kept ready is for the environment that jobs have
    rows = Rows(RESULT, options, ("model", "started", "repetition"), repetitions=options.repetitions)
    most = options.pick(smoke=2, quick=4, full=4)
    for number in options.pick(smoke=(PACED,), quick=(PACED,), full=(PACED, 1)):
        for repetition in range(options.pick(smoke=1, quick=2, full=options.repetitions)):
            for started, more in list(VARIANTS.items())[: 1 if options.smoke else 2 if repetition else 3]:
                key = {"model": workload(number).name, "started": started, "repetition": repetition}
                if rows.find(**key) is None:
                    with tempfile.TemporaryDirectory() as temporary, keeper(started == "kept"):
                        times = run_once(number, Path(temporary).resolve(), more, most)
                    rows.put({**key, "times": times})
                    shown = ", ".join(f"{one['what']} {one['seconds']:.2f} s" for one in times)
                    print(f"{key['model']:18} {started:8} {repetition}: {shown}", flush=True)
    found = summary(rows.all())
    for entry in found:
        print(line(entry))
    rows.finish(summary=found, workers=WORKERS)


if __name__ == "__main__":
    main()
