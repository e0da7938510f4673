"""Fixtures for every test."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_isoscale_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own ISOSCALE_ variables must not change what a test does."""
    for name in list(os.environ):
        if name.startswith("ISOSCALE_"):
            monkeypatch.delenv(name)
