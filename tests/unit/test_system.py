"""What the system says of processes, also when it says nothing."""

from __future__ import annotations

import contextlib
import resource
import subprocess
from collections.abc import Iterator

import pytest

from isoscale.backends.system import born, lives


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def living() -> Iterator[tuple[int, int]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid, born(process.pid)
        process.kill()


@pytest.fixture
def dead() -> tuple[int, int]:
    with subprocess.Popen(["sleep", "0.01"]) as process:
        found = process.pid, born(process.pid)
    return found


def test_a_process_is_known_by_its_birth(living: tuple[int, int], dead: tuple[int, int]) -> None:
    pid, birth = living
    assert lives(pid, birth)
    assert not lives(pid, birth - 1), "it had that number before"
    assert not lives(pid, 0)
    assert not lives(*dead)


def test_nobody_is_taken_for_dead_because_nobody_can_look(living: tuple[int, int], dead: tuple[int, int]) -> None:
    with no_descriptor_left():
        found = born(living[0]), lives(*living), lives(*dead)
    assert found == (0, True, False)
