from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.ray.nodes import ADDRESS, Nodes


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """One cluster for all tests of this folder: starting it is what costs time."""
    made = Nodes()
    os.environ[ADDRESS] = made.address
    yield made
    made.close()
