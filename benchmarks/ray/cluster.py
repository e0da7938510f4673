"""A Ray cluster on this machine for a benchmark: a head without devices, and nodes of one CPU that come and go."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from isoscale.backends.ray_nodes import short_name

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
        self._leaving: list[threading.Timer] = []

    def start_afresh(self, count: int) -> None:
        """So many nodes, none of them used before: one that drained is not to be had again."""
        self._keep_all()
        self.have(0)
        self.have(count)

    def have(self, count: int) -> None:
        while len(self.all) < count:
            self.all.append(self._cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES))
        while len(self.all) > count:
            self._cluster.remove_node(self.all.pop(), allow_graceful=False)

    def drain(self, node: Any, seconds: int) -> None:
        """As a spot instance goes: announced, and gone when the time is over."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", self.address]
        command += ["--node-id", node.node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "gone"]
        command += ["--deadline-remaining-seconds", str(seconds)]
        subprocess.run(command, check=True, capture_output=True)
        self._leaving.append(threading.Timer(seconds, self._remove, [node]))
        self._leaving[-1].start()

    def _keep_all(self) -> None:
        """Nobody leaves any more."""
        while self._leaving:
            timer = self._leaving.pop()
            timer.cancel()
            timer.join()

    def _remove(self, node: Any) -> None:
        self.all.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def holding(self, node: Any) -> str:
        """By which devices of the node are known."""
        return short_name(str(node.node_id))

    def close(self) -> None:
        self._keep_all()
        self._cluster.shutdown()


@contextmanager
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    try:
        yield made
    finally:
        made.close()
