"""The noise scale of a problem in which it is known, and the rules that use it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isoscale.core.noise import Measured, NoiseScale, gain, measured
from isoscale.errors import UserError
from isoscale.runtime.training.batch_rules import check_rule, factor_of, scale_rates, step_schedulers

DIM, SIGMA = 50, 3.0


def step_of(generator: torch.Generator, n: int, b: int) -> Measured:
    """The loss of a sample x is |w - x|^2 / 2 with x ~ N(0, SIGMA^2 I), at w = (1, ..., 1): its gradient is w - x, the
    true gradient's squared norm DIM, and the trace of one sample's covariance DIM SIGMA^2."""
    x = SIGMA * torch.randn(n, b, DIM, generator=generator, dtype=torch.float64)
    small = 1.0 - x.mean(1)
    one = measured(float(small.square().sum(1).mean()), float(small.mean(0).square().sum()), b, n)
    assert one is not None
    return one


@pytest.mark.parametrize(("n", "b"), [(2, 4), (8, 1), (5, 16)])
def test_estimates_have_no_bias(n: int, b: int) -> None:
    generator = torch.Generator().manual_seed(n)
    ones = [step_of(generator, n, b) for _ in range(4000)]
    for values, truth in (([o.grad_sq for o in ones], DIM), ([o.trace for o in ones], DIM * SIGMA**2)):
        sample = torch.tensor(values, dtype=torch.float64)
        spread = float(sample.std()) / math.sqrt(len(ones))
        assert abs(float(sample.mean()) - truth) < 5 * spread


def test_the_smoothed_ratio_comes_to_the_noise_scale_of_the_problem() -> None:
    generator, scale = torch.Generator().manual_seed(0), NoiseScale()
    assert scale.value is None
    seen = []
    for _ in range(600):
        scale.add(step_of(generator, 8, 16))
        assert scale.value is not None
        seen.append(scale.value)
    middle = sorted(seen[100:])[250]
    assert middle == pytest.approx(SIGMA**2, rel=0.1)
    other = NoiseScale()
    other.load(scale.state())
    assert other.value == scale.value


def test_what_is_not_finite_is_no_estimate() -> None:
    assert measured(math.inf, 1.0, 4, 2) is None
    assert measured(math.nan, 1.0, 4, 2) is None
    scale = NoiseScale()
    scale.add(Measured(-1.0, 2.0))  # noise is so large that the gradient is lost in it
    assert scale.value is None


@given(st.floats(0, 1e12), st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_larger_batch_is_worth_more_but_never_more_than_it_is_larger(noise: float, old: int, new: int) -> None:
    worth = gain(noise, old, new)
    low, high = sorted((1.0, new / old))
    assert low * (1 - 1e-9) <= worth <= high * (1 + 1e-9)


def optimizer(**options: Any) -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1, **options)


def run(schedule: Any, steps: int) -> list[float]:
    out = []
    for _ in range(steps):
        schedule.optimizer.step()
        schedule.step()
        out.append(float(schedule.optimizer.param_groups[0]["lr"]))
    return out


SCHEDULES = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.9**k),
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 3),
    "cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.4, total_steps=20),
    "chain": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.ConstantLR(o, 0.5, 4), torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.9**k)],
        milestones=[4],
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_on_at_the_new_rate(name: str) -> None:
    """Twice the rates of the schedule that was left alone, at every later step, whichever way it computes them."""
    alone, changed = (SCHEDULES[name](optimizer()) for _ in range(2))
    assert run(alone, 3) == run(changed, 3)
    take_back = scale_rates([changed, changed.optimizer], 2.0)
    assert changed.get_last_lr()[0] == pytest.approx(2 * alone.get_last_lr()[0])
    assert run(changed, 8) == pytest.approx([2 * rate for rate in run(alone, 8)], rel=1e-6)
    take_back()
    assert changed.optimizer.param_groups[0]["initial_lr"] == alone.optimizer.param_groups[0]["initial_lr"]


def test_a_rate_that_is_a_tensor_stays_the_same_tensor() -> None:
    one = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=torch.tensor(0.25))
    rate = one.param_groups[0]["lr"]
    take_back = scale_rates([one], 0.5)
    assert one.param_groups[0]["lr"] is rate
    assert float(rate) == 0.125
    take_back()
    assert float(rate) == 0.25


def test_nothing_is_changed_if_a_rate_would_not_be_finite() -> None:
    one = torch.optim.SGD(
        [
            {"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.5},
            {"params": [torch.nn.Parameter(torch.ones(1))], "lr": 1e300},
        ]
    )
    with pytest.raises(ValueError, match="inf"):
        scale_rates([one], 1e300)
    assert [group["lr"] for group in one.param_groups] == [0.5, 1e300]


def test_factors() -> None:
    assert factor_of("linear", 16, 64, num_workers=2, noise_scale=None) == 4.0
    assert factor_of("sqrt", 16, 64, num_workers=2, noise_scale=None) == 2.0
    assert factor_of("none", 16, 64, num_workers=2, noise_scale=None) == 1.0
    assert factor_of("adascale", 16, 64, num_workers=2, noise_scale=96.0) == (96 / 32 + 1) / (96 / 128 + 1)
    with pytest.raises(UserError, match="noise scale"):
        factor_of("adascale", 16, 64, num_workers=2, noise_scale=None)
    with pytest.raises(UserError, match="no such rule"):
        check_rule("cubic", "batch_rule")


@pytest.mark.filterwarnings("ignore")
def test_schedulers_that_count_steps_are_told_from_those_that_count_epochs() -> None:
    by_step, by_epoch = SCHEDULES["cycle"](optimizer()), SCHEDULES["step"](optimizer())
    run(by_step, 7)
    run(by_epoch, 2)
    assert step_schedulers([("a", by_step), ("b", by_epoch)], 7, 2) == ["a (OneCycleLR)"]
