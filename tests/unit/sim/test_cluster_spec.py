"""Clusters from one line, and from node lists."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from isoscale.errors import UserError
from isoscale.sim.cluster_spec import NodeSpec, parse_cluster, parse_devices


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("V100*32+P100*16+T4*16", [("V100", "V100", 32), ("P100", "P100", 16), ("T4", "T4", 16)]),
        ("2x(T4*4)", [("T4-0", "T4", 4), ("T4-1", "T4", 4)]),
        ("2xT4*4", [("T4-0", "T4", 4), ("T4-1", "T4", 4)]),
        (" 1 x (V100*8) + 2x( T4 ) ", [("V100-0", "V100", 8), ("T4-0", "T4", 1), ("T4-1", "T4", 1)]),
        ("1x(T4*4)+1x(T4*2)", [("T4-0", "T4", 4), ("T4-1", "T4", 2)]),
        ("T4*2+1x(T4*4)", [("T4", "T4", 2), ("T4-1", "T4", 4)]),
        ("cpu", [("cpu", "cpu", 1)]),
    ],
)
def test_grammar(text: str, nodes: list[tuple[str, str, int]]) -> None:
    assert parse_cluster(text) == tuple(NodeSpec(name=n, kind=k, devices=d) for n, k, d in nodes)


@pytest.mark.parametrize(
    "text", ["", "T4*0", "T4**2", "T4*", "*4", "16x()", "0x(T4*4)", "2x(T4*4", "T4*4+", "T4*-1", "4", "2x(T4*2+V100*2)"]
)
def test_bad_specs_name_the_field_and_show_the_whole(text: str) -> None:
    with pytest.raises(UserError, match=r"^--cluster=") as caught:
        parse_cluster(text)
    assert caught.value.value == text
    assert "\n" not in str(caught.value)


def test_a_path_that_is_no_file_is_said_to_be_one() -> None:
    with pytest.raises(UserError, match="no such file"):
        parse_cluster("clusters/mine.csv")


def test_device_sets_add_up() -> None:
    assert parse_devices("V100*2+T4+V100") == (("V100", 3), ("T4", 1))


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("kind,devices,count\nT4,4,3\nV100,8,1\n", {("T4", 4): 3, ("V100", 8): 1}),
        ("node,kind,devices\na,T4,4\nb,T4,2\n", {("T4", 4): 1, ("T4", 2): 1}),
        ("sn,cpu_milli,memory_mib,gpu,model\nn0,1,1,2,P100\nn1,1,1,0,\n", {("P100", 2): 1}),
        (
            "machineId, number of GPUs, single GPU mem\nm0,2, 12GB\nm1,8, 24GB\n",
            {("gpu-12gb", 2): 1, ("gpu-24gb", 8): 1},
        ),
        (",machineId,number of GPUs\n0,m0,8\n1,m1,0\n", {("gpu", 8): 1}),
        ("num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n2,3,4,64,256\n", {("gpu", 4): 6}),
    ],
)
def test_node_lists(tmp_path: Path, text: str, kinds: dict[tuple[str, int], int]) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    nodes = parse_cluster(str(path))
    assert Counter((node.kind, node.devices) for node in nodes) == kinds
    assert len({node.name for node in nodes}) == len(nodes)


def test_node_list_errors(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("sn,gpu,model\nn0,two,T4\n")
    with pytest.raises(UserError, match=r"nodes.csv:2 gpu=two: is not a number"):
        parse_cluster(str(path))
    path.write_text("who,knows\n1,2\n")
    with pytest.raises(UserError, match=r"--cluster=.*no known node list"):
        parse_cluster(str(path))
    path.write_text("sn,gpu,model\nn0,0,\n")
    with pytest.raises(UserError, match="no node has a device"):
        parse_cluster(str(path))
