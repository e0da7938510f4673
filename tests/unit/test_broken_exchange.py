from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes


def test_a_broken_exchange_wakes_all_who_wait_and_closes_its_sockets(tmp_path: Path) -> None:
    """Also: bytes of changing sizes from everybody, and large messages of a size that only the sender knows."""
    script, root = Path(__file__).with_name("exchange_rank.py"), Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(index), str(tmp_path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        stories = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], stories
    assert "breaker done" in stories[0][0]
    assert "peer broken" in stories[1][0]


def test_one_who_waits_for_a_silent_peer_wakes_although_another_one_is_gone(tmp_path: Path) -> None:
    """gloo closes all connections when a wait exceeds its time limit; none does where the peer is known to be gone."""
    script, root = Path(__file__).with_name("apart_rank.py"), Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(index), str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for index in range(3)
    ]
    first, gone, silent = processes
    try:
        gone.wait(60)
        while Path(f"/proc/{silent.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert silent.poll() is None
            time.sleep(0.01)
        (tmp_path / "others are gone").touch()
        story, _ = first.communicate(timeout=100)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert story == "woken\n"
