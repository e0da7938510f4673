"""Many jobs, real time: the service that shares devices between real jobs, and its client.

`isoscale serve` runs `service` behind `api`; what it must not forget is in `store`. A program talks to it through
`Client`. Jobs are ordinary coordinators in sessions of their own, and outlive the service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isoscale.cluster.client import Client as Client
    from isoscale.cluster.values import JobShown as JobShown
    from isoscale.cluster.values import Submission as Submission

__all__ = ["Client", "JobShown", "Submission"]

_HOME = {"Client": "client", "JobShown": "values", "Submission": "values"}


def __getattr__(name: str) -> Any:
    """Imported when asked for: a client needs nothing of the service, and the service no client."""
    import importlib

    if name in _HOME:
        return getattr(importlib.import_module(f"isoscale.cluster.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
