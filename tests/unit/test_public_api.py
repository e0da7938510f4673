from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest

import isoscale


def test_public_names_are_sorted() -> None:
    assert isoscale.__all__ == sorted(isoscale.__all__)


@pytest.mark.parametrize("name", isoscale.__all__)
def test_public_name_is_importable(name: str) -> None:
    if name in ("Job", "run"):
        pytest.importorskip("isoscale.runtime.training.job")
    assert getattr(isoscale, name) is not None
    assert name in dir(isoscale)


def test_error_classes_are_public() -> None:
    errors = importlib.import_module("isoscale.errors")
    assert {name for name in isoscale.__all__ if name.endswith("Error")} == set(errors.__all__)
    assert isoscale.UserError is errors.UserError


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Jobs'"):
        isoscale.Jobs  # noqa: B018


@pytest.mark.parametrize("module", ["isoscale", "isoscale.clock", "isoscale.env", "isoscale.errors"])
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'torch', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
