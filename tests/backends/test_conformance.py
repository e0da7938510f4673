"""This machine, cold and warm, held against the seam."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from isoscale.testing.conformance import CHECKS, Harness
from tests.backends.harnesses import Cold, Light, Shared, Warm

pytestmark = pytest.mark.processes

#: checks that use torch; in all others a warm parent that has it is that of `Shared`
WITH_TORCH = ("fingerprints", "fresh_streams")


@pytest.mark.parametrize("harness", [Cold, Warm, Shared])
@pytest.mark.parametrize("name", CHECKS)
def test_local(name: str, harness: type[Harness], tmp_path: Path) -> None:
    own = Light if harness is Warm and name not in WITH_TORCH else harness
    asyncio.run(CHECKS[name](own(), tmp_path))
