from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.nodes import ADDRESS, Nodes
from tests.security.network import deselect_network


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests with the marker `network` take minutes and need root: only by `-m network`."""
    deselect_network(config, items, Path(__file__).parent)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """One cluster for all tests of a file: starting it takes time, and a node costs some as long as it is there."""
    made = Nodes()
    os.environ[ADDRESS] = made.address
    yield made
    made.close()
