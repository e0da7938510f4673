"""Forming and breaking the groups of executors that exchange with each other, for `runtime.executor.orders`.

Forming blocks until all are there, so it happens on threads of its own beside training. gloo is imported only where
more than one executor is.
"""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from isoscale.core.reduction.exchange import Exchange, LocalExchange
from isoscale.protocol import messages as m
from isoscale.types import Placement

__all__ = ["break_off", "break_off_handover", "connect", "connect_handover", "unreachable", "without_group"]

#: all who are to form a group say whom they cannot reach in less than the time in which a coordinator waits for it
_PROBE_S = 1.5
_MAX_PROBES = 32


def connect(order: m.Prepare | m.Recover | m.Begin, host: str) -> Exchange:
    """The group of a generation; ExchangeBrokenError if somebody does not come."""
    placement = Placement(shares=order.shares)
    if placement.num_executors == 1:
        return LocalExchange(placement.num_logical_workers)
    from isoscale.runtime.transport import gloo as collective

    return collective.connect(order.store, placement, order.index, host=host)


def without_group(order: m.Begin) -> Exchange:
    """What stands for a group that could not be formed: its first use finds that out."""
    from isoscale.runtime.transport.gloo import GlooExchange

    return GlooExchange(None, Placement(shares=order.shares), order.index)


def unreachable(order: m.Prepare | m.Recover) -> tuple[int, ...]:
    """Who of a group that was not formed does not even take a connection; nobody where they are on one machine."""
    places = enumerate(zip(order.members, order.addresses, strict=False))
    others = [(executor, address) for i, (executor, address) in places if address and i != order.index]
    if not others:
        return ()
    with ThreadPoolExecutor(min(len(others), _MAX_PROBES), "probe") as probes:
        answers = list(probes.map(_answers, [address for _, address in others]))
    return tuple(executor for (executor, _), answered in zip(others, answers, strict=True) if not answered)


def _answers(address: str) -> bool:
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=_PROBE_S).close()
    except OSError:
        return False
    return True


def connect_handover(order: m.Prepare, host: str) -> Any:
    """Where nobody who has the state stays: the one of those who leave that hands it over, then all newcomers."""
    from isoscale.runtime.transport.gloo import form_group

    return form_group(f"{order.store}-handover", _place_in_handover(order), len(order.senders) + 1, host)


def _place_in_handover(order: m.Prepare) -> int:
    fresh = sorted(order.senders)
    return fresh.index(order.index) + 1 if order.index in fresh else 0


def break_off(exchange: Exchange | None) -> None:
    """Whoever waits in it wakes up. On a thread: it takes a moment, and the caller has other things to do."""
    if exchange is not None and exchange.placement.num_executors > 1:
        threading.Thread(target=exchange.break_off, name="break off", daemon=True).start()
        exchange.broken = True


def break_off_handover(group: Any) -> None:
    """As `break_off`, for what `connect_handover` gave."""
    threading.Thread(target=group.break_off, name="break off", daemon=True).start()
