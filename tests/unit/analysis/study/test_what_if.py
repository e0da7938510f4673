"""The trace in the simulator: the same jobs under two policies, what was assumed, and when it is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from isoscale.analysis.study.analysis import analyse, as_json
from isoscale.analysis.study.formats import open_trace, sources
from isoscale.analysis.study.own_log import OwnLog, Resize
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.trace import Capacity, Trace
from isoscale.analysis.study.what_if import WhatIf, what_if
from isoscale.errors import UserError
from isoscale.scheduling.policy import make_policy
from isoscale.sim.costs import PRESETS
from isoscale.sim.engine import Options
from isoscale.sim.result import summarise
from isoscale.sim.run import Experiment


def trace() -> Trace:
    found = open_trace(sources("philly:jobs=80,days=0.3,hours=6")[0], Reading())
    capacity = Capacity(since_s=np.array([-np.inf]), devices=np.array([32.0]), source="a test")
    return replace(found, capacity=capacity)


def test_it_is_the_simulators_own_answer() -> None:
    """The same jobs on the same cluster through the front door give the same figures."""
    found = what_if(trace())
    assert isinstance(found, WhatIf)
    experiment = Experiment(
        trace="philly:jobs=80,days=0.3,hours=6",
        cluster="4x(gpu*8)",
        options=Options(costs=PRESETS["stop-free"], interval_s=0.0),
    )
    outcome = experiment.simulate(make_policy("fifo-backfill"), experiment.jobs(0), 0)
    assert found.present.mean_jct_s == pytest.approx(summarise(outcome).mean_jct_s)
    assert found.present.device_hours == pytest.approx(outcome.ledger.device_seconds() / 3600)
    assert (found.jobs, found.devices) == (80, 32)
    assert found.ours.mean_jct_s < found.present.mean_jct_s
    assert found.measured_jct_s is None


def test_the_busiest_stretch_of_a_long_trace_is_taken_and_said() -> None:
    whole = trace()
    found = what_if(whole, most_jobs=20)
    assert isinstance(found, WhatIf)
    assert found.jobs == 20
    assert any("only the 20 consecutive jobs" in words for words in found.assumptions)
    work = whole.jobs.run_s * whole.jobs.devices
    most = max(work[i : i + 20].sum() for i in range(61))
    assert found.present.device_hours * 3600 >= most


def test_elastic_logs_and_few_jobs_are_refused_with_what_is_missing() -> None:
    few = open_trace(sources("philly:jobs=5,days=1")[0], Reading())
    assert what_if(few) == "at least 10 jobs with submission, run time and devices"
    grown = replace(trace(), own=OwnLog(source="simulated", resizes=(Resize(0, 1.0, 2, 4, 0.5, ""),)))
    assert "simulate its trace instead" in str(what_if(grown))
    found = as_json(analyse(grown, simulate_jobs=50))
    assert "simulate its trace" in found["missing"]["advice.elasticity"]


def test_a_simulated_log_has_its_own_policy() -> None:
    mine = replace(trace(), format="isoscale-simulated", name="tiresias")
    found = what_if(mine, most_jobs=30)
    assert isinstance(found, WhatIf)
    assert found.present.policy == "tiresias"
    assert "the present policy is tiresias" in found.assumptions
    told = what_if(mine, present="srtf", most_jobs=30)
    assert isinstance(told, WhatIf)
    assert told.present.policy == "srtf"
    unnamed = what_if(trace(), most_jobs=30)
    assert isinstance(unnamed, WhatIf)
    assert "the present policy is fifo-backfill: the trace does not name it" in unnamed.assumptions


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(UserError, match="--present=magic: no such policy"):
        what_if(trace(), present="magic")


def test_the_answer_and_its_assumptions_are_in_the_document() -> None:
    found = as_json(analyse(trace(), simulate_jobs=80))["advice"]["elasticity"]
    assert found["ours"]["policy"] == "flow"
    assert found["present"]["policy"] == "fifo-backfill"
    words = " ".join(found["assumptions"])
    for told in ("curve drawn by seed", "neither model nor speeds", "32 equal devices", "at every event"):
        assert told in words
