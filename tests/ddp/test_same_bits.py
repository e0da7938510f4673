"""Every case, run by real DistributedDataParallel and by isoscale on several placements: every bit must agree."""

from __future__ import annotations

import pytest
from ddp_cases import CASES, Case
from ddp_pool import Pool

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_elastic_is_stock_ddp(case: Case, pool: Pool) -> None:
    reference = pool.reference(case.name, workers=case.workers, order=case.order)
    assert reference.parts[0].step > 0
    for shares in case.placements:
        difference = pool.elastic(case.name, shares=shares, order=case.order).difference_from(reference)
        assert difference is None, f"{case.id}: {difference}"


@pytest.mark.parametrize("workers", [2, 3])
def test_the_reference_is_the_tutorials_script(workers: int, pool: Pool) -> None:
    """What everything above is compared with, compared with a script that knows nothing of isoscale."""
    tutorial = pool.reference("ddp_cases.stock:plain_sgd", workers=workers).parts[0].state
    reference = pool.reference("ddp_cases.basics:plain_sgd", workers=workers).parts[0].state
    saved = {path.removeprefix("state."): value for path, value in tutorial.items() if path.startswith("state.")}
    assert len(saved) > 10
    assert {path: reference[path] for path in saved} == saved
