"""Grants on the disk: durable, numbered, never overwritten by an older one; read by whoever is to obey."""

from __future__ import annotations

from pathlib import Path

import pytest

from isoscale.backends.seam import Device
from isoscale.errors import UserError
from isoscale.runtime.control.grants import DeviceGrant, device_named, read_grant, refuse_if_granted, write_grant


def test_the_highest_number_stays(tmp_path: Path) -> None:
    two = DeviceGrant(number=2, devices=(device_named("node0/cpu/1", cores=(1,)),), batch=32, job="j")
    assert read_grant(tmp_path) is None
    assert write_grant(tmp_path, two)
    assert not write_grant(tmp_path, DeviceGrant(number=1))
    assert read_grant(tmp_path) == two
    assert write_grant(tmp_path, DeviceGrant(number=3, job="j"))
    assert read_grant(tmp_path) == DeviceGrant(number=3, job="j")


def test_a_device_names_its_node_and_kind() -> None:
    assert device_named("a/cpu-avx2/3") == Device(id="a/cpu-avx2/3", kind="cpu-avx2", node="a")
    for wrong in ("", "cpu", "node0/1", "/cpu/1", "node0//1", "node0/cpu/"):
        with pytest.raises(UserError, match="NODE/KIND/NUMBER"):
            device_named(wrong)


def test_a_grant_as_a_device_set() -> None:
    many = tuple(device_named(name) for name in ("a/cpu/0", "a/cpu-sse/0", "b/cpu/0"))
    assert str(DeviceGrant(number=1, devices=many).target) == "cpu*2+cpu-sse*1"
    assert DeviceGrant(number=1).target is None


@pytest.mark.parametrize("torn", [b"", b"{", b'{"number": "x"}', b"\xff" * 100])
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, torn: bytes) -> None:
    write_grant(tmp_path, DeviceGrant(number=1))
    (tmp_path / "control" / "grant.json").write_bytes(torn)
    with pytest.raises(UserError, match="isoscale jobs resume"):
        read_grant(tmp_path)


def test_people_are_sent_to_the_service(tmp_path: Path) -> None:
    refuse_if_granted(tmp_path, "scale")
    write_grant(tmp_path, DeviceGrant(number=1, job="job-7"))
    with pytest.raises(UserError, match="isoscale jobs scale job-7"):
        refuse_if_granted(tmp_path, "scale")
