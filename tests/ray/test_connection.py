"""Which Ray cluster is meant where none is named."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from isoscale.backends.ray_connection import cluster_of_this_machine


def test_a_cluster_that_ray_remembers_counts_only_while_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private import services

    # Clusters of other tests may run on this machine.
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: set())
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert cluster_of_this_machine() == ""
    with socket.create_server((services.get_node_ip_address(), 0)) as head:
        address = "{}:{}".format(*head.getsockname())
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        assert cluster_of_this_machine() == address
    assert cluster_of_this_machine() == ""
