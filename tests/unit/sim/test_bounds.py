"""The bounds beside simulated results are bounds: against every choice of jobs, and against arithmetic by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate.bounds import Demand, least_mean_time, most_completed

_END_S = 20.0


def demand(begin_s: float, device_s: float, fastest_s: float = 1.0) -> Demand:
    return Demand(submitted_s=begin_s, begin_s=begin_s, device_s=device_s, fastest_s=fastest_s)


def fits(jobs: tuple[Demand, ...], num_devices: int) -> bool:
    """Whether the work of those that begin at or after any moment fits into what is left of the time."""
    return all(job.fastest_s <= _END_S - job.begin_s for job in jobs) and all(
        sum(job.device_s for job in jobs if job.begin_s >= begin) <= num_devices * (_END_S - begin)
        for begin in {job.begin_s for job in jobs}
    )


@settings(max_examples=60)
@given(
    st.lists(st.builds(demand, st.integers(0, 19), st.integers(1, 20), st.sampled_from([1, 4])), max_size=6),
    st.integers(1, 3),
)
def test_no_set_of_jobs_is_larger(jobs: list[Demand], num_devices: int) -> None:
    sets = (chosen for size in range(len(jobs), -1, -1) for chosen in itertools.combinations(jobs, size))
    largest = next(len(chosen) for chosen in sets if fits(chosen, num_devices))
    assert most_completed(jobs, num_devices, _END_S) == largest


def test_mean_time_by_hand() -> None:
    # One device, a long job and a short one that overtakes it: done at 2 and 11.
    assert least_mean_time([demand(0, 10), demand(1, 1)], 1) == pytest.approx((11 + 1) / 2)
    # Plenty of devices: nobody is faster than its fastest.
    assert least_mean_time([demand(0, 10, 3), demand(1, 1, 2)], 100) == pytest.approx(2.5)
