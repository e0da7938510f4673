"""What an administrator may change while the service runs: the policy and the quotas.

A change is on record before it counts, is made in the engine's thread between two decisions, and holds until the
service is started again: then its options count.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from isoscale import limits
from isoscale.cluster.auth import ConflictError
from isoscale.cluster.engine import Engine
from isoscale.cluster.forecast import Forecaster
from isoscale.cluster.store import Store
from isoscale.cluster.values import check_name
from isoscale.errors import UserError
from isoscale.scheduling.controller import Controller
from isoscale.scheduling.policy import Policy, policy_names
from isoscale.sim.run import named, parse_policies

__all__ = ["INTERVAL_S", "Settings", "interval_of", "one_policy"]

#: seconds between decisions of policies that watch time, unless the operator says otherwise
INTERVAL_S = 1.0
#: with `--interval 0`, of policies that watch time
_SHORTEST_S = 0.2
_PATIENCE_S = 10.0
_MAX_QUOTAS = 1_000


class Settings:
    def __init__(
        self,
        store: Store,
        engine: Engine,
        controller: Controller,
        forecaster: Forecaster,
        now: Callable[[], float],
        interval_s: float | None,
    ) -> None:
        """`interval_s`: as the operator said, None: as suits the policy."""
        self._store, self._engine, self._controller = store, engine, controller
        self._forecaster, self._now, self._interval_s = forecaster, now, interval_s

    def change_policy(self, text: str, by: str) -> None:
        """Raises UserError, also for a policy that would have to be imported: only known ones come over the network."""
        if named(text, field="policy")[0] not in policy_names():
            remedy = f"give one of {', '.join(policy_names())}"
            raise UserError(field="policy", value=text[:80], problem="no such policy", remedy=remedy)
        label, make = one_policy(text, field="policy")
        policy = make()

        def change() -> None:
            self._controller.govern(policy=policy, interval_s=interval_of(policy, self._interval_s))
            self._engine.policy = label
            self._forecaster.make_policy = make

        self._in_engine("policy_changed", by, {"from": self._engine.policy, "to": label}, change)

    def change_quotas(self, quotas: Mapping[str, int], by: str) -> None:
        """All of them: a tenant that is not named has none. Raises UserError."""
        if len(quotas) > _MAX_QUOTAS:
            raise UserError(field="quotas", value=len(quotas), problem="too many", remedy=f"at most {_MAX_QUOTAS}")
        for tenant, count in quotas.items():
            check_name("quotas", tenant)
            limits.within(count, "quotas", limits.Range(0, limits.EXECUTORS.most))
        made = dict(quotas)

        def change() -> None:
            self._controller.govern(quotas=made)
            self._engine.quotas = made

        self._in_engine("quotas_changed", by, {"from": dict(self._engine.quotas), "to": made}, change)

    def _in_engine(self, event: str, by: str, fields: dict[str, Any], change: Callable[[], None]) -> None:
        done: Future[None] = Future()

        def work(engine: Engine) -> list[Any]:
            try:
                with self._store.write(now=self._now(), by=by) as tx:
                    tx.event(event, **fields)
                change()
                done.set_result(None)
            except sqlite3.OperationalError as error:  # a full disk: whoever asked is told, and all stays as it is
                done.set_exception(error)
            except BaseException as error:
                done.set_exception(error)
                raise
            return []

        self._engine.call(work)
        try:
            done.result(_PATIENCE_S)
        except FutureTimeout:
            raise ConflictError("the service does not get to it; look again in a moment") from None


def interval_of(policy: Policy, wanted: float | None) -> float | None:
    """Seconds between decisions; None: the policy's own."""
    if wanted is None and (policy.interval_s > 0 or policy.watches_time):
        return INTERVAL_S
    if wanted == 0 and policy.watches_time:
        return _SHORTEST_S  # every moment is an event: it would be asked without end
    return wanted


def one_policy(text: str, *, field: str = "--policy") -> tuple[str, Callable[[], Policy]]:
    """Raises UserError for a policy that there is not, that needs to know the future, or for several."""
    found = list(parse_policies(text, field=field))
    if len(found) != 1:
        raise UserError(field=field, value=text, problem="several policies", remedy="give one")
    label, make = found[0]
    if make().oracle:
        raise UserError(
            field=field,
            value=text,
            problem="needs to know the future, as only a simulator does",
            remedy="give another",
        )
    return label, make
