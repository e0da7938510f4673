"""A Ray cluster on this machine for a benchmark: a head without devices, and nodes of one CPU that come and go."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STORE_BYTES = 80 * 2**20


class Nodes:
    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # Else what runs on a node has a lower priority than what does not.
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - that is its name
        self._cluster = Cluster()
        self._cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=_STORE_BYTES)
        self.address: str = self._cluster.address
        self.all: list[Any] = []

    def have(self, count: int) -> None:
        while len(self.all) < count:
            self.all.append(self._cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES))
        while len(self.all) > count:
            self._cluster.remove_node(self.all.pop(), allow_graceful=False)

    def drain(self, node: Any, seconds: int) -> None:
        """As a spot instance is announced to go."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", self.address]
        command += ["--node-id", node.node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "gone"]
        command += ["--deadline-remaining-seconds", str(seconds)]
        subprocess.run(command, check=True, capture_output=True)

    def holding(self, node: Any) -> str:
        """By which devices of the node are known."""
        return str(node.node_id[:8])

    def close(self) -> None:
        self._cluster.shutdown()


@contextmanager
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    try:
        yield made
    finally:
        made.close()
