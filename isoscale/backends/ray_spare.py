"""A spare of a run: an executor's actor that is there before anybody asks for it, on the node whose device comes next.

Half a second and more of a start on Ray goes by until a worker process has imported Ray. A spare has, and takes nothing
of its node until it is used: then it takes what an executor takes, as a placement group of its own, which Ray removes
when the actor dies. At most one for each run; an actor that nobody uses or tells to stay ends by itself.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from typing import Any

import ray
import ray.exceptions

from isoscale.backends.ray_actors import IDLE_S, ExecutorActor
from isoscale.backends.ray_found import on_node

__all__ = ["Spare"]

#: after a start, which shall have the machine for itself
_REST_S = 3.0
#: how long one that has just been made may take to be there
_ANSWER_S = 30.0


class Spare:
    """Calls wait for Ray's head: not for an event loop. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actor: Any = None
        self._node = self._name = ""
        self._told_s = -math.inf
        self._rests_until_s = -math.inf

    @property
    def node(self) -> str:
        """On which it is; "" without one."""
        return self._node if self._actor is not None else ""

    def keep(self, node: str) -> None:
        """See that it is on this node; "": no node has room for an executor."""
        with self._lock:
            now_s = time.monotonic()
            if self._actor is not None and node == self._node:
                if now_s - self._told_s > IDLE_S / 4:
                    self._told_s = now_s
                    self._actor.stay.remote()
                return
            self._end()
            if node and now_s > self._rests_until_s:
                self._node, self._name, self._told_s = node, f"spare/{node}/{secrets.token_hex(4)}", now_s
                options = {**on_node(node, self._name), "num_cpus": 0}
                with contextlib.suppress(ray.exceptions.RayError, ValueError):
                    self._actor = ray.remote(ExecutorActor).options(**options).remote()

    def take(self, node: str) -> tuple[Any, str] | None:
        """An actor on this node, and its name, for somebody who is started there now."""
        with self._lock:
            self._rests_until_s = time.monotonic() + _REST_S
            if self._actor is None or node != self._node:
                return None
            # Both now: another spare may have been made before this one has answered.
            actor, name, self._actor = self._actor, self._name, None
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(actor.pid.remote(), timeout=_ANSWER_S)
            return actor, name
        return None

    def close(self) -> None:
        with self._lock:
            self._end()
            self._rests_until_s = math.inf

    def _end(self) -> None:
        if self._actor is not None:
            self._actor.leave.remote()
            self._actor = None
