"""A Ray cluster that grows when it is asked to: a real autoscaler, whose nodes are processes of this machine.

Not through Ray's `AutoscalingCluster`: it begins and ends with `ray stop --force`, which ends whatever Ray runs here,
and it needs a file that Ray's wheel lacks. The cluster and its coordinator have process ids of their own instead, and
end together.
"""

from __future__ import annotations

import json
import shlex
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isoscale.testing import RunningJob, short_job_path, start
from isoscale.testing.chaos import Result, compare, result_of
from tests.cluster.conftest import Cluster
from tests.elastic.machines import ISOSCALE, Machines

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

_STORE_BYTES = 80 * 2**20
#: a node comes within seconds, on a machine that has nothing else to do
PATIENCE_S = 240.0
#: as Ray's own tests have its second autoscaler with nodes that are processes
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # else it depends on whether a token lies on this machine
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": "fffffffffffffffffffffffffffffffffffffffffffffffffff00000",
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": "fffffffffffffffffffffffffffffffffffffffffffffffffff00000",
}


_NODE = {"resources": {"CPU": 1, "object_store_memory": _STORE_BYTES}, "node_config": {}, "min_workers": 0}
CONFIG: dict[str, Any] = {
    "cluster_name": "grows",
    "max_workers": 3,
    "upscaling_speed": 100.0,
    "idle_timeout_minutes": 30,
    "provider": {
        # Its own name would need a file that Ray's wheel lacks.
        "type": "external",
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
        "launch_multiple": True,
        "head_node_id": VARIABLES["RAY_CLOUD_INSTANCE_ID"],
    },
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "small": {**_NODE, "max_workers": 3},
    },
    "head_node_type": "ray.head.default",
    "auth": {},
    "file_mounts": {},
    "cluster_synced_files": [],
    "file_mounts_sync_continuously": False,
    "initialization_commands": [],
    "setup_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def begin(machines: Machines, tmp_path: Path) -> Callable[..., None]:
    """A cluster whose head has no device, and a command of isoscale on it: even the first executor waits for a node."""

    def begin(*words: object, sees: tuple[Path, ...] = ()) -> None:
        from ray._private.services import get_node_ip_address

        config, port = tmp_path / "autoscaler.json", free_port()
        provider = {**CONFIG["provider"], "gcs_address": f"{get_node_ip_address()}:{port}"}
        config.write_text(json.dumps({**CONFIG, "provider": provider}))
        head = [Path(sys.executable).parent / "ray", "start", "--head", f"--port={port}"]
        head += ["--node-ip-address=127.0.0.1", f"--autoscaling-config={config}", "--num-cpus=0"]
        # Not below TMPDIR, which is this test's: the names of Ray's sockets must be short.
        head += ["--include-dashboard=false", f"--object-store-memory={_STORE_BYTES}", "--temp-dir=/tmp/ray"]
        first, *rest = words
        command = [*ISOSCALE, first, "--backend", "ray", "--address", f"127.0.0.1:{port}", *rest]
        own = "mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray"
        machines.start_program(
            "cluster",
            "sh",
            "-c",
            f"{own} && {shlex.join(map(str, head))} && exec {shlex.join(map(str, command))}",
            sees=sees,
            options=("-m", "--pid", "--fork", "--kill-child", "--mount-proc"),
            **VARIABLES,
        )

    return begin


def nodes_of(directory: Path) -> set[str]:
    """On which executors of a run are."""
    known = json.loads((directory / "control" / "executors.json").read_text())
    return {one["device"].partition("/")[0] for one in known.values()}


def test_a_node_is_added_when_a_job_wants_more(
    begin: Callable[..., None], machines: Machines, expected: Result, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    options = ["--workers", 4, "--executors", 1, "--out", out, "--no-rebalance"]
    begin("run", short_job_path(), *options, "--", "4", "0.04", "0", "wait", "track", sees=(out,))
    job = RunningJob(out)
    machines.until(lambda: job.step() >= 2, "two steps on a node that was added", PATIENCE_S)
    job.scale(3)
    machines.until(lambda: len(job.members()) == 3, "executors on two more nodes", PATIENCE_S)
    assert len(nodes_of(out)) == 3, "three nodes with one device each"
    job.hurry()
    machines.until(lambda: machines.processes["cluster"].poll() is not None, "the end", PATIENCE_S)
    assert machines.processes["cluster"].returncode == 0, machines.output()
    assert compare(expected, result_of(job)) == "", machines.output()


def test_a_service_asks_for_nodes_while_jobs_wait(begin: Callable[..., None], tmp_path: Path) -> None:
    """One before it can begin, and what a job needs that has to wait for devices; no more than that."""
    with start(short_job_path(), out=tmp_path / "alone", executors=1, script_args=["4"]) as alone:
        assert alone.wait() == 0, alone.output()
    cluster = Cluster(tmp_path / "state")
    begin("serve", "--state", cluster.state)
    cluster.until(cluster.answers)
    first = cluster.submit(4, 4, "wait", min_devices=1)
    cluster.until_step(first, 2)
    second = cluster.submit(4, 4, "wait", min_devices=2)
    cluster.until_step(second, 2)
    assert len(nodes_of(cluster.directory(first)) | nodes_of(cluster.directory(second))) == 3
    cluster.hurry(first, second)
    for job in (first, second):
        cluster.until_state(job, "finished")
        assert cluster.results(job) == [alone.digest()]
