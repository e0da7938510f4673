"""The seam between a controller and its policies, and the registry that finds a policy by name.

A policy returns decisions and touches nothing. Policies are found by name here and nowhere else: no other code may ask
what a policy is called.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from isoscale import limits
from isoscale.errors import UserError
from isoscale.scheduling.state import ClusterState, Decision

__all__ = ["Policy", "make_policy", "policy_names", "register"]


class Policy(Protocol):
    """Chooses. An instance serves one controller and may remember; the same states give the same decisions."""

    #: seconds between decisions unless the operator says otherwise; 0 decides whenever something happened
    interval_s: float
    #: needs `remaining` even of jobs that declare none; only a simulator can know, so figures say "oracle"
    oracle: bool
    #: decisions depend on time or progress alone, so a round in which nothing happened must not be skipped
    watches_time: bool
    #: gives every job exactly the devices that it asked for, or none
    gang: bool

    def decide(self, state: ClusterState) -> list[Decision]:
        """Called at every round. Decisions must fit `state.capacity` taken together; a job appears at most once.

        Further questions go to a shallow copy, so what a policy remembers is replaced, not changed in place.
        """
        ...


_FACTORIES: dict[str, tuple[Callable[..., Policy], str]] = {}


def register(name: str, *, summary: str) -> Callable[[Callable[..., Policy]], Callable[..., Policy]]:
    """Decorator: makes a policy known by `name`; `summary` is a line for listings."""

    def add(factory: Callable[..., Policy]) -> Callable[..., Policy]:
        if name in _FACTORIES:
            raise ValueError(f"policy {name!r} is registered twice")
        _FACTORIES[name] = (factory, summary)
        return factory

    return add


def make_policy(name: str, **options: Any) -> Policy:
    """A fresh policy; `options` go to its constructor. Raises UserError for what it does not have or cannot use."""
    _load()
    if name not in _FACTORIES:
        near = difflib.get_close_matches(name.lower(), _FACTORIES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(
            field="--policy",
            value=name,
            problem="unknown policy",
            remedy=f"{hint}give one of {', '.join(sorted(_FACTORIES))}",
        )
    factory = _FACTORIES[name][0]
    parameters = inspect.signature(factory).parameters.values()
    if all(one.kind is not one.VAR_KEYWORD for one in parameters):
        defaults = {one.name: one.default for one in parameters}
        for option, value in options.items():
            _check_option(name, option, value, defaults)
    return factory(**options)


def _check_option(name: str, option: str, value: Any, defaults: Mapping[str, Any]) -> None:
    given = f"{name}({option}={value})"
    if option not in defaults:
        remedy = f"it has {', '.join(defaults)}" if defaults else "it has none"
        raise UserError(field="--policy", value=given, problem=f"{name} has no option {option}", remedy=remedy)
    default = defaults[option]
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise UserError(field="--policy", value=given, problem="neither true nor false", remedy="give one of them")
    elif isinstance(default, int | float):
        whole = isinstance(default, int)
        wanted = int if whole else int | float
        if isinstance(value, bool) or not isinstance(value, wanted) or math.isnan(value):
            problem = "not a whole number" if whole else "not a number"
            raise UserError(field="--policy", value=given, problem=problem, remedy=f"give one, such as {default:g}")
        limits.within(value, "--policy", limits.Range(-limits.MAX_NUMBER, limits.MAX_NUMBER), shown=given)


def policy_names() -> Mapping[str, str]:
    """Every policy's name and summary, sorted."""
    _load()
    return {name: _FACTORIES[name][1] for name in sorted(_FACTORIES)}


def _load() -> None:
    """Importing the package registers every policy in it."""
    import isoscale.scheduling.policies  # noqa: F401
