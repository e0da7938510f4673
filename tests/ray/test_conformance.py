"""A Ray cluster held against the seam."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from isoscale.testing.conformance import CHECKS, program
from tests.ray.nodes import Nodes, OnRay

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", CHECKS)
def test_ray(name: str, nodes: Nodes, tmp_path: Path) -> None:
    nodes.have(2)
    OnRay.remove = staticmethod(lambda device: nodes.kill(nodes.of(device)))
    asyncio.run(CHECKS[name](OnRay(), tmp_path))


async def _works_in_a_copy(tmp_path: Path) -> None:
    (tmp_path / "brought").mkdir()
    (tmp_path / "brought" / "data.txt").write_text("found it")
    backend = OnRay().make(working_dir=str(tmp_path / "brought"))
    launch = program("import os; print(os.getcwd(), open('data.txt').read())", tmp_path)
    process = await backend.start(launch, backend.free_device("cpu", ()))
    assert await process.wait() == "exit code 0", process.tail()
    where, found = process.tail().split(" ", 1)
    assert found == "found it"
    assert Path(where) not in (tmp_path / "brought", Path.cwd())
    await process.sweep()
    await backend.close()


def test_a_working_directory_comes_through_the_runtime_environment(nodes: Nodes, tmp_path: Path) -> None:
    nodes.have(1)
    asyncio.run(_works_in_a_copy(tmp_path))
