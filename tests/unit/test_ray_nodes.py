"""What of Ray needs no Ray: which devices nodes have, and what is refused before anybody is asked."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from isoscale.backends.ray_nodes import Demand, RayNode, node_of, offers
from isoscale.cli.on_ray import parse_bytes
from isoscale.errors import UserError
from isoscale.runtime.coordinator.adoption import survivors
from tests.cli.in_process import refusal


def shown(*nodes: RayNode, cores: float = 1.0, memory_bytes: int = 0) -> list[tuple[str, str, int]]:
    found = offers(nodes, Demand(cores=cores, memory_bytes=memory_bytes))
    return [(one.name, one.kind, one.count) for one in found]


def test_a_node_has_as_many_devices_as_its_cpus_and_its_memory_are_enough_for() -> None:
    node = RayNode(id="a" * 56, labels={"isoscale.kind": "cpu-avx2"}, resources={"CPU": 7.0, "memory": 5 * 2.0**30})
    assert shown(node) == [("aaaaaaaa", "cpu-avx2", 7)]
    assert shown(node, cores=2) == [("aaaaaaaa", "cpu-avx2", 3)]
    assert shown(node, memory_bytes=2**31) == [("aaaaaaaa", "cpu-avx2", 2)]
    assert shown(node, cores=8) == []


def test_a_resource_says_kind_and_number_and_may_do_so_for_several() -> None:
    both = {"CPU": 8.0, "isoscale.kind:cpu": 2.0, "isoscale.kind:cpu-sse": 3.0}
    assert shown(RayNode(id="b" * 56, resources=both)) == [
        ("bbbbbbbb-cpu", "cpu", 2),
        ("bbbbbbbb-cpu-sse", "cpu-sse", 3),
    ]
    assert shown(RayNode(id="b" * 56, resources={**both, "CPU": 1.0})) == [
        ("bbbbbbbb-cpu", "cpu", 1),
        ("bbbbbbbb-cpu-sse", "cpu-sse", 1),
    ]


def test_gpus_count_where_the_kind_needs_them() -> None:
    node = RayNode(id="c" * 56, labels={"isoscale.kind": "cuda"}, resources={"CPU": 16.0, "GPU": 4.0})
    assert shown(node) == [("cccccccc", "cuda", 4)]
    assert Demand(cores=2).options("cuda", node.resources) == {"num_cpus": 2, "num_gpus": 1}


def test_nodes_keep_their_order_and_dead_ones_have_nothing() -> None:
    fields = {"NodeID": "d" * 56, "NodeManagerAddress": "10.0.0.2", "Resources": {"CPU": 1.0}, "Labels": {}}
    assert node_of({**fields, "Alive": False}) is None
    alive = node_of({**fields, "Alive": True})
    assert alive is not None
    first = RayNode(id="e" * 56, address="10.0.0.1", resources={"CPU": 1.0})
    assert [name for name, _, _ in shown(alive, first)] == ["eeeeeeee", "dddddddd"]


def test_executors_with_a_name_are_looked_for_by_it_on_whichever_machine() -> None:
    fields = {"pid": 7, "born": 1, "machine": "elsewhere", "device": "n/cpu/0", "kind": "cpu", "ready": True}
    left = {0: {**fields, "name": "isoscale/r/0"}, 1: {**fields, "name": "isoscale/r/1"}, 2: fields}
    found = survivors(left, "here", lambda pid: 0, lambda identity: identity.name == "isoscale/r/0")
    assert (found.ready, found.remote) == ({0: 7}, {2})


@pytest.mark.parametrize(("text", "size"), [("500M", 500 * 2**20), ("4GiB", 2**32), ("1024", 1024), (None, 0)])
def test_sizes(text: str | None, size: int) -> None:
    assert parse_bytes(text, "--memory") == size


@pytest.mark.parametrize("text", ["", "0", "-4G", "4X", "1e9", "9" * 30])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--memory"):
        parse_bytes(text, "--memory")


def test_mistakes_are_told_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    run = ("run", "recipe:digits", "--out", out)
    assert "give --backend ray, too" in refusal(*run, "--address", "127.0.0.1:1")
    assert refusal(*run, "--backend", "slurm").startswith("--backend=")
    assert "HOST:PORT" in refusal(*run, "--backend", "ray", "--address", "nowhere")
    assert "no Ray cluster" in refusal(*run, "--backend", "ray", "--address", "127.0.0.1:1")
    assert refusal("serve", "--state", out, "--backend", "ray", "--address", "x:0").startswith("--address=")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else found(name, *more))
    assert "pip install 'isoscale[ray]'" in refusal(*run, "--backend", "ray")
    assert not out.exists()


def test_nothing_imports_ray_unless_asked() -> None:
    names = "isoscale.cli.app, isoscale.cli.run, isoscale.cli.serve, isoscale.cluster.service"
    names += ", isoscale.runtime.coordinator.run, isoscale.backends.ray_nodes, isoscale.backends.ray_connection"
    code = f"import sys, {names}; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
