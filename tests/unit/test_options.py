"""Options that say the same thing twice: accepted where they agree, refused where they do not."""

from __future__ import annotations

import pytest

from isoscale.cli.devices import devices_and_plan
from isoscale.errors import UserError


@pytest.mark.parametrize(
    ("executors", "devices", "plan", "first"),
    [
        (2, None, "0:2,40:4", "cpu*2"),
        (None, "cpu*2", "0:2,40:4", "cpu*2"),
        (2, "cpu*2", "0:2,40:4", "cpu*2"),
        (2, None, "0:cpu*1+cpu-avx2*1,40:4", "cpu*1+cpu-avx2*1"),
        (None, "cpu-avx2*1+cpu*1", "0:cpu*1+cpu-avx2*1,40:4", "cpu*1+cpu-avx2*1"),
        (None, None, "0:2,40:4", "cpu*2"),
        (3, None, "40:4", "cpu*3"),
    ],
)
def test_a_plan_beside_first_devices_that_agree_with_it(
    executors: int | None, devices: str | None, plan: str, first: str
) -> None:
    found, later = devices_and_plan(executors, devices, plan, 4, None)
    assert (str(found), [(step, str(one)) for step, one in later]) == (first, [(40, "cpu*4")])


@pytest.mark.parametrize(
    ("executors", "devices", "plan", "problem"),
    [
        (3, None, "0:2,40:4", "begins with cpu*2, but --executors is 3"),
        (None, "cpu*3", "0:2,40:4", "begins with cpu*2, but --devices is cpu*3"),
        (None, "cpu-avx2*2", "0:2,40:4", "begins with cpu*2, but --devices is cpu-avx2*2"),
        (2, "cpu*1+cpu-avx2*1", "0:2", "begins with cpu*2, but --devices is cpu*1+cpu-avx2*1"),
    ],
)
def test_a_plan_beside_other_first_devices_is_refused(
    executors: int | None, devices: str | None, plan: str, problem: str
) -> None:
    with pytest.raises(UserError) as caught:
        devices_and_plan(executors, devices, plan, 4, None)
    assert (caught.value.field, caught.value.value) == ("--plan", plan)
    assert problem in str(caught.value)
    assert "give one of them, or both alike" in str(caught.value)
