"""isoscale's actors on a Ray cluster, by name: made, found, asked who runs in them, ended."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import ray
import ray.exceptions

from isoscale.backends.ray_demand import Bundle, DemandActor
from isoscale.backends.seam import Identity

__all__ = ["NAMESPACE", "ask_for", "end_actors", "lives", "named_actor", "on_node"]

#: of all named actors
NAMESPACE = "isoscale"
_ANSWER_S = 10.0


def on_node(node: str, name: str) -> dict[str, Any]:
    """Options of an actor that outlives whoever makes it."""
    return {**_lasting(name), "label_selector": {"ray.io/node-id": node}, "max_restarts": 0}


def named_actor(name: str) -> Any:
    """None if there is none."""
    with contextlib.suppress(ValueError, ray.exceptions.RayError):
        return ray.get_actor(name, namespace=NAMESPACE) if name else None
    return None


def lives(identity: Identity) -> bool | None:
    """Whether it runs in the actor of its name; None if nobody can tell now."""
    try:
        actor = ray.get_actor(identity.name, namespace=NAMESPACE)
        return bool(ray.get(actor.lives.remote(), timeout=_ANSWER_S) == identity)
    except (ValueError, ray.exceptions.ActorDiedError):
        return False  # there is no such actor (any more)
    except ray.exceptions.RayError:
        return None


def end_actors(names: Collection[str], seconds: float) -> set[str]:
    """With their processes, and all that those have started; the names of those that were not seen dead in time.

    Nor were those of whom nobody can tell now: Ray's head may be away, or the network to their nodes.
    """
    actors, left = {}, set[str]()
    for name in names:
        try:
            actors[name] = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            continue  # there is no such actor (any more)
        except ray.exceptions.RayError:
            left.add(name)
    swept = {}
    for name, actor in actors.items():
        actor.kill.remote()
        swept[actor.swept.remote()] = name
    if swept:
        ray.wait(list(swept), num_returns=len(swept), timeout=seconds)
    for reference, name in swept.items():
        try:
            ray.get(reference, timeout=0)
        except ray.exceptions.ActorDiedError:
            pass  # and its process with it
        except ray.exceptions.RayError:
            left.add(name)
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(actors[name], no_restart=True)
    return left


def ask_for(run: str, bundles: list[Bundle]) -> None:
    """What a run wants in all, for the cluster's autoscaler."""
    with contextlib.suppress(ray.exceptions.RayError, ValueError):
        options = {**_lasting("demand"), "num_cpus": 0, "max_restarts": -1, "get_if_exists": True}
        owner = ray.remote(DemandActor).options(**options).remote()
        owner.ask.remote(run, bundles)


def _lasting(name: str) -> dict[str, Any]:
    return {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
