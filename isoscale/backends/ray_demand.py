"""What isoscale's jobs want of a Ray cluster that grows: told to its autoscaler by one owner.

`request_resources` is global, and the last call wins. So one actor of the cluster adds up what all jobs want and calls
it. A job repeats its wish while it has one; a wish that is not repeated is forgotten, however its job ended. The actor
ends when nobody has a wish: the node on which it is would never be idle.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["REPEAT_S", "Bundle", "DemandActor", "Ledger"]

#: a wish is repeated so often, and forgotten when it was not for so long
REPEAT_S, FORGET_S = 20.0, 60.0
_LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class Bundle:
    """What one executor takes, and which label its node must have for it; "" any."""

    resources: tuple[tuple[str, float], ...]
    kind: str = ""


@dataclass(slots=True)
class Ledger:
    """Pure.

    >>> ledger, one = Ledger(), Bundle((("CPU", 1.0),))
    >>> ledger.ask("a", [one, one], now=0.0); ledger.ask("b", [one], now=30.0)
    >>> len(ledger.total(now=50.0)), len(ledger.total(now=70.0))
    (3, 1)
    """

    _wishes: dict[str, tuple[float, tuple[Bundle, ...]]] = field(default_factory=dict)

    def ask(self, run: str, bundles: Sequence[Bundle], now: float) -> None:
        self._wishes[run] = now, tuple(bundles)

    def total(self, now: float) -> list[Bundle]:
        self._wishes = {run: wish for run, wish in self._wishes.items() if now - wish[0] <= FORGET_S}
        return [bundle for run in sorted(self._wishes) for bundle in self._wishes[run][1]]


class DemandActor:
    """The owner. Made by `backends.ray`, one for the whole cluster."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        #: None: what the autoscaler was told before this actor, which may have died elsewhere, is not known
        self._told: list[Bundle] | None = None
        self._lock = threading.Lock()
        self._over = False
        threading.Thread(target=self._forget, daemon=True).start()

    def ask(self, run: str, bundles: Sequence[Bundle]) -> None:
        with self._lock:
            self._ledger.ask(run, bundles, time.monotonic())
            self._tell()

    def _forget(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            with self._lock, contextlib.suppress(Exception):  # whatever Ray raises while its head is away
                if self._over:
                    return
                self._tell()
                if not self._told:
                    self._leave()

    def _leave(self) -> None:
        """An actor can end only in a call."""
        import ray

        ray.get_runtime_context().current_actor.leave.remote()

    def leave(self) -> None:
        """Unless somebody has asked meanwhile. What is asked afterwards is asked again, and another one made for it."""
        import ray

        with self._lock:
            self._over = not self._ledger.total(time.monotonic())
            if self._over:
                ray.actor.exit_actor()

    def _tell(self) -> None:
        total = self._ledger.total(time.monotonic())
        if total == self._told:
            return
        from ray.autoscaler.sdk import request_resources

        from isoscale.backends.ray_nodes import KIND

        request_resources(
            bundles=[dict(bundle.resources) for bundle in total],
            bundle_label_selectors=[{KIND: bundle.kind} if bundle.kind else {} for bundle in total],
        )
        self._told = total
