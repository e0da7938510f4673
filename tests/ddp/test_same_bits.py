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
