from __future__ import annotations

import os
import subprocess
import sys
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
