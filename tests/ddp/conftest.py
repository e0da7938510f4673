"""The pool of processes, and one test per case, number of logical workers and order of summation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Test modules cannot import each other (importmode=importlib); what they share are ordinary modules in this folder.
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from ddp_pool import Pool  # noqa: E402


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    pool = Pool([HERE, HERE.parent.parent])
    yield pool
    pool.close()
