"""What these tests share: the digest of the job when nothing happens to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.jobs import STEPS, digest_alone
from tests.security.network import deselect_network


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The first digits of the digest after all steps."""
    return digest_alone(STEPS, tmp_path_factory.mktemp("alone"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    deselect_network(config, items, Path(__file__).parent)
