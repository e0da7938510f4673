"""Which Ray cluster is meant where none is named."""

from __future__ import annotations

import shlex
import socket
import sys
from pathlib import Path

import pytest

from isoscale.backends.ray_connection import cluster_of_this_machine
from isoscale.testing import RunningJob, short_job_path
from isoscale.testing.chaos import Result, compare, result_of
from tests.elastic.machines import ISOSCALE, Machines


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


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_token_that_lies_on_this_machine_is_shown_to_its_cluster(
    machines: Machines, expected: Result, tmp_path: Path
) -> None:
    """`ray start` protects a cluster where a token lies, which Ray leaves behind when it starts one by itself."""
    out, ray = tmp_path / "run", Path(sys.executable).parent / "ray"
    out.mkdir()
    head = [ray, "start", "--head", "--num-cpus=2", "--include-dashboard=false", f"--object-store-memory={80 * 2**20}"]
    command = [*ISOSCALE, "run", short_job_path(), "--backend", "ray", "--workers", 4, "--out", out]
    command += ["--no-rebalance", "--", "4", "0", "0", "track"]
    begun = [[ray, "get-auth-token", "--generate"], [*head, "--temp-dir=/tmp/ray"], ["exec", *command]]
    own = "mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray"
    machines.start_program(
        "cluster",
        "sh",
        "-c",
        " && ".join([own, *(shlex.join(map(str, words)) for words in begun)]),
        sees=(out,),
        options=("-m", "--pid", "--fork", "--kill-child", "--mount-proc"),
        HOME=str(tmp_path),
        RAY_USAGE_STATS_ENABLED="0",
    )
    machines.until(lambda: machines.processes["cluster"].poll() is not None, "the end", 240.0)
    assert machines.processes["cluster"].returncode == 0, machines.output()
    assert (tmp_path / ".ray" / "auth_token").exists()
    assert compare(expected, result_of(RunningJob(out))) == "", machines.output()
