"""A Ray cluster of several nodes on this machine, and the backend on it as a harness of the seam's checks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isoscale.backends.ray import RayBackend
from isoscale.backends.ray_connection import connect
from isoscale.backends.ray_nodes import Demand, short_name
from isoscale.backends.seam import Backend, Device
from isoscale.runtime.coordinator.run import WARM_UP
from isoscale.testing import RunningJob
from isoscale.testing.chaos import Result, compare, result_of
from tests.elastic.machines import Machines

__all__ = ["ADDRESS", "Nodes", "OnRay", "ends_the_same"]

#: the cluster's address, for processes of a test
ADDRESS = "TESTED_RAY_CLUSTER"
_STORE_BYTES = 80 * 2**20


class Nodes:
    """The head has no devices, so that every other node can go."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        self.cluster = Cluster()
        self.cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=_STORE_BYTES)
        self.address: str = self.cluster.address
        self._nodes: list[Any] = []
        #: those that are gone, too
        self._all: list[Any] = []

    def have(self, count: int, *, cores: int = 1, **options: Any) -> list[Any]:
        """So many nodes with one device of kind `cpu` each; those that are missing are started."""
        while len(self._nodes) < count:
            self.add(cores=cores, **options)
        return self._nodes[:count]

    def add(self, *, cores: int = 1, **options: Any) -> Any:
        node = self.cluster.add_node(num_cpus=cores, object_store_memory=_STORE_BYTES, **options)
        self._nodes.append(node)
        self._all.append(node)
        return node

    def add_apart(self, machines: Machines, *names: str) -> None:
        """A node with one device on each of these machines, which see nothing of a test's run.

        One after another: Ray's sockets are in one directory, and two nodes that begin at once take the same name.
        """
        own = ("-m", "--pid", "--fork", "--kill-child", "--mount-proc")
        ray_start = [Path(sys.executable).parent / "ray", "start", "--block", f"--address={self.address}"]
        limits = ["--num-cpus=1", f"--object-store-memory={_STORE_BYTES}"]
        for name in names:
            machines.start_program(name, *ray_start, *limits, f"--labels=machine={name}", options=own)
            machines.until(lambda name=name: name in self._machines(), "a node on another machine", 240.0)

    def _machines(self) -> set[str]:
        """On which nodes of `add_apart` are."""
        import ray

        connect(self.address)
        return {node["Labels"].get("machine", "") for node in ray.nodes() if node["Alive"]}

    def kill(self, node: Any) -> None:
        self._nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def all(self) -> list[Any]:
        return list(self._nodes)

    def of(self, device: Device) -> Any:
        return next(node for node in self._nodes if device.node.startswith(short_name(node.node_id)))

    def close(self) -> None:
        import ray

        session = self.cluster.head_node.get_session_dir_path()
        ray.shutdown()
        self.cluster.shutdown()
        shutil.rmtree(session, ignore_errors=True)  # Ray keeps it, with all logs
        for node in self._all:  # nobody was left to do it
            for directory in Path("/tmp").glob(f"isoscale-ray-{node.node_id[:12]}-*"):
                shutil.rmtree(directory, ignore_errors=True)


class OnRay:
    """Made in this process it knows how a node is taken away."""

    remove: Callable[[Device], None]

    def make(self) -> RayBackend:
        connect(os.environ[ADDRESS])
        return RayBackend(WARM_UP, Demand(cores=1))

    def kind(self) -> str:
        return "cpu"

    async def vanish(self, backend: Backend, device: Device) -> None:
        type(self).remove(device)


def ends_the_same(job: RunningJob, expected: Result) -> None:
    """With the result of a local run that nobody disturbed."""
    job.hurry()
    assert job.wait() == 0, job.output()
    assert compare(expected, result_of(job)) == ""
