"""A Ray cluster held against the seam."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from isoscale.testing.conformance import CHECKS
from tests.ray.nodes import Nodes, OnRay

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", CHECKS)
def test_ray(name: str, nodes: Nodes, tmp_path: Path) -> None:
    nodes.have(2)
    OnRay.remove = staticmethod(lambda device: nodes.kill(nodes.of(device)))
    asyncio.run(CHECKS[name](OnRay(), tmp_path))
