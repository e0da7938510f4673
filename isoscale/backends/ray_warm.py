"""Warm actors of a Ray cluster's nodes: made before they are needed, and kept while a run may start an executor there.

A warm actor ends when nobody has used it for ten minutes, and a node may join late: so whoever looks at the nodes says
which there are, and all of them hear from this again and again.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import ray
import ray.exceptions

from isoscale.backends.ray_actors import WarmActor
from isoscale.backends.ray_found import on_node
from isoscale.backends.warm import read_at_import

__all__ = ["WarmNodes"]

#: well below what a warm actor waits for in vain
_REPEAT_S = 120.0
#: nodes on which processes are prepared before the first one is asked for
_MAX_NODES = 16


class WarmNodes:
    """Of one run. Calls wait for Ray's head: not for an event loop. From any thread."""

    def __init__(self, prepare: str) -> None:
        """`prepare`: "module:function", what a warm parent does before it forks anybody."""
        self._prepare = prepare
        self._lock = threading.Lock()
        #: by what differs at import
        self._environments: dict[str, Mapping[str, str]] = {}
        #: when a node's warm actor has been told last
        self._told: dict[tuple[str, str], float] = {}

    def want(self, environment: Mapping[str, str]) -> None:
        """Processes with this environment will be asked for."""
        with self._lock:
            self._environments.setdefault(_key(environment), dict(environment))

    def keep(self, nodes: Iterable[str]) -> None:
        """Those on which processes may be started: see that a warm actor is there, if it is time to."""
        with self._lock:
            wanted = list(self._environments.values())
        for node in list(dict.fromkeys(nodes))[:_MAX_NODES]:
            for environment in wanted:
                if time.monotonic() - self._told.get((node, _key(environment)), -math.inf) > _REPEAT_S:
                    self.at(node, environment)

    def at(self, node: str, environment: Mapping[str, str]) -> tuple[str, Any]:
        """The directory in which the node's warm actor for this environment can be met, and a call that is answered
        when it is there; None if it cannot be made."""
        self.want(environment)
        key = _key(environment)
        self._told[node, key] = time.monotonic()
        directory = f"/tmp/isoscale-ray-{node[:12]}-{key}"
        options = {**on_node(node, f"warm/{node}/{key}"), "num_cpus": 0, "get_if_exists": True}
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            warm = ray.remote(WarmActor).options(**options).remote(directory, self._prepare)
            return directory, warm.prepare.remote(dict(environment))
        return directory, None


def _key(environment: Mapping[str, str]) -> str:
    variables = "\0".join(f"{name}={value}" for name, value in sorted(read_at_import(environment)))
    return hashlib.sha256(variables.encode(errors="surrogateescape")).hexdigest()[:12]
