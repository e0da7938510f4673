"""What these tests share: the digest of the job when nothing happens to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.jobs import STEPS, digest_alone


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The first digits of the digest after all steps."""
    return digest_alone(STEPS, tmp_path_factory.mktemp("alone"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests with the marker `network` take minutes and need root: only by `-m network`."""
    if "network" in str(config.option.markexpr):
        return
    here = Path(__file__).parent
    left_out = [item for item in items if here in item.path.parents and item.get_closest_marker("network")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
