"""The seam between a controller and its policies, and the registry that finds a policy by name.

A policy returns decisions and touches nothing. Policies are found by name here and nowhere else: no other code may ask
what a policy is called. One from outside is named `module:Class`, or declared by an installed package (`plugins`) under
the group `isoscale.policies`.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

from isoscale import limits, plugins
from isoscale.errors import UserError
from isoscale.scheduling.state import ClusterState, Decision

__all__ = ["GROUP", "Policy", "make_policy", "policy_names", "register"]

#: of entry points of installed packages
GROUP = "isoscale.policies"


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
    factory = _find(name)
    parameters = inspect.signature(factory).parameters.values()
    if all(one.kind is not one.VAR_KEYWORD for one in parameters):
        defaults = {one.name: one.default for one in parameters}
        words = _words(factory)
        for option, value in options.items():
            _check_option(name, option, value, defaults)
            if option in words and value not in words[option]:
                given, known = f"{name}({option}={value})", ", ".join(map(str, words[option]))
                raise UserError(field="--policy", value=given, problem="unknown word", remedy=f"give one of {known}")
    policy = factory(**options)
    _check_whole(name, policy)
    return policy


def _find(name: str) -> Callable[..., Policy]:
    _load()
    if name in _FACTORIES:
        return _FACTORIES[name][0]
    outside = plugins.declared(GROUP)
    if plugins.is_path(name) or name in outside:
        factory: Callable[..., Policy] = plugins.load(outside.get(name, name), field="--policy")
        return factory
    near = difflib.get_close_matches(name.lower(), [*_FACTORIES, *outside], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(
        field="--policy",
        value=name,
        problem="unknown policy",
        remedy=f"{hint}give one of {', '.join(sorted([*_FACTORIES, *outside]))}, or MODULE:CLASS",
    )


def _check_whole(name: str, policy: Policy) -> None:
    """Before anything runs: what a policy from outside forgot."""
    missing = [one for one in ("interval_s", "oracle", "watches_time", "gang", "decide") if not hasattr(policy, one)]
    if missing:
        raise UserError(
            field="--policy",
            value=name,
            problem=f"is no policy: it has no {', '.join(missing)}",
            remedy="see isoscale.scheduling.policy.Policy",
        )


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


def _words(factory: Callable[..., Policy]) -> dict[str, tuple[object, ...]]:
    """Options whose values are one of a few words, by their `Literal` types."""
    try:
        hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    except Exception:  # annotations of somebody else's policy that only a type checker can resolve
        return {}
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def policy_names() -> Mapping[str, str]:
    """The name and summary of every policy here, sorted; those of installed packages are in `plugins.declared`."""
    _load()
    return {name: _FACTORIES[name][1] for name in sorted(_FACTORIES)}


def _load() -> None:
    """Importing the package registers every policy in it."""
    import isoscale.scheduling.policies  # noqa: F401
