"""Generated traces: their distributions, and that a seed gives the same jobs."""

from __future__ import annotations

import numpy as np
import pytest

from isoscale.errors import UserError
from isoscale.sim.synthetic import PhillyLike, generate, parse_generator


def test_a_seed_gives_the_same_jobs_and_another_one_others() -> None:
    assert generate(PhillyLike(jobs=50, seed=3)) == generate(PhillyLike(jobs=50, seed=3))
    assert generate(PhillyLike(jobs=50, seed=3)) != generate(PhillyLike(jobs=50, seed=4))


def test_quantiles_are_those_of_the_philly_trace() -> None:
    jobs = generate(PhillyLike(jobs=40_000, days=30, seed=1, hours=1e9))
    single = np.array([job.duration_s for job in jobs if job.devices == 1]) / 60
    assert np.percentile(single, [10, 50, 90, 99]) == pytest.approx([1.0, 18.6, 142.0, 2257.0], rel=0.15)
    assert len(single) / len(jobs) == pytest.approx(0.932, abs=0.01)
    assert {job.devices for job in jobs} <= {1, 2, 4, 8, 12, 16, 24, 32}


def test_more_jobs_arrive_by_day_than_by_night() -> None:
    hours = np.array([job.submit_s / 3600 % 24 for job in generate(PhillyLike(jobs=20_000, days=10, seed=2))])
    day, night = np.sum((hours >= 12) & (hours < 16)), np.sum((hours >= 0) & (hours < 4))
    assert day / night == pytest.approx(1.57 / 0.43, rel=0.2)


def test_options_limit_what_is_generated() -> None:
    jobs = generate(PhillyLike(jobs=3000, days=2, largest=4, hours=1))
    assert max(job.devices for job in jobs) == 4
    assert max(job.duration_s or 0 for job in jobs) == 3600
    assert jobs[-1].submit_s < 2 * 86_400
    assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)


def test_specs_are_parsed() -> None:
    assert parse_generator("philly") == PhillyLike()
    assert parse_generator("philly:jobs=20,days=0.5,seed=9") == PhillyLike(jobs=20, days=0.5, seed=9)


@pytest.mark.parametrize("text", ["philly:jobs=x", "philly:foo=1", "philly:jobs", "mars:jobs=1", "philly:jobs=0"])
def test_bad_specs_name_the_field(text: str) -> None:
    with pytest.raises(UserError, match=r"^--trace"):
        parse_generator(text)
