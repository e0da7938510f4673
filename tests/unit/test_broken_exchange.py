"""Exchanges that are given up: whoever waits in one wakes, whatever gloo makes of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import Forked

pytestmark = pytest.mark.processes


@contextlib.contextmanager
def ranks(script: str, count: int, directory: Path, *arguments: str) -> Iterator[list[Forked]]:
    program = Path(__file__).with_name(script)
    started: list[Forked] = []
    try:
        for index in range(count):
            log = directory / f"rank-{index}.log"
            started.append(Forked(program, str(index), str(directory), *arguments, log=log))
        yield started
    finally:
        for process in started:
            process.kill()


def test_a_broken_exchange_wakes_all_who_wait_and_closes_its_sockets(tmp_path: Path) -> None:
    """Also: bytes of changing sizes from everybody, and large messages of a size that only the sender knows."""
    with ranks("exchange_rank.py", 2, tmp_path) as processes:
        codes = [process.wait(100) for process in processes]
        stories = [process.output for process in processes]
    assert codes == [0, 0], stories
    assert "breaker done" in stories[0]
    assert "peer broken" in stories[1]


def test_one_who_waits_for_a_silent_peer_wakes_although_another_one_is_gone(tmp_path: Path) -> None:
    """gloo closes all connections when a wait exceeds its time limit; none does where the peer is known to be gone."""
    with ranks("apart_rank.py", 3, tmp_path) as (first, gone, silent):
        gone.wait(60)
        until_stopped(silent)
        (tmp_path / "others are gone").touch()
        first.wait(100)
        assert first.output == "woken\n"


def test_a_broken_group_is_not_forgotten_on_the_training_thread(tmp_path: Path) -> None:
    """That joins gloo's threads, and one that gloo has forgotten sleeps for half an hour."""
    with ranks("recovering_rank.py", 2, tmp_path) as (first, gone):
        gone.wait(60)
        first.wait(100)
        assert first.output == "retire\n"


@pytest.mark.parametrize("story", ["sends", "receives", "sums"])
def test_one_who_waits_for_a_message_that_is_half_way_wakes(tmp_path: Path, story: str) -> None:
    """gloo closes the connection, and forgets whoever waits for the rest."""
    with ranks("half_way_rank.py", 2, tmp_path, story) as (first, other):
        if story != "receives":
            until_stopped(other)
            (tmp_path / "stopped").touch()
        first.wait(100)
        assert first.output == "woken\n"


def until_stopped(process: Forked) -> None:
    stat = Path(f"/proc/{process.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        assert process.poll() is None, process.output
        time.sleep(0.01)
