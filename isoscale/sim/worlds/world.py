"""The seam for worlds: who turns a trace into jobs with a truth, and how a world is found by name.

A world brings what a trace does not have: how fast a job really is on which devices (`SimJob.truth`), what its owner
declares or may be assumed before anything was measured (`declared`, `declared_work`), and what its changes cost
(`costs`, told to policies as `request.restart_s`). Where none is named, `workload` makes jobs from tables and curves;
`mixed` is here by name; one from outside is `module:Class`, or declared by an installed package under the group
`isoscale.worlds`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from isoscale import plugins
from isoscale.errors import UserError
from isoscale.scheduling.state import Cluster, SpeedModel
from isoscale.sim.job import SimJob
from isoscale.sim.traces.record import TraceJob
from isoscale.sim.worlds.mixed import Mixed

__all__ = ["GROUP", "World", "check_jobs", "make_world", "world_names"]

GROUP = "isoscale.worlds"
#: name -> what makes it
_WORLDS: dict[str, Callable[..., World]] = {"mixed": Mixed}


class World(Protocol):
    """Makes jobs. The same trace, cluster and seed give the same jobs.

    A world that also has an attribute `interference` (`isoscale.sim.interference`) says how much its jobs slow each
    other down on a node; `--interference` overrules it.
    """

    def jobs(self, trace: Sequence[TraceJob], cluster: Cluster, *, seed: int = 0) -> Sequence[SimJob]:
        """A job for each record that can run on the cluster, in order. Called once for each seed of an experiment;
        `Truth.fresh` gives every policy the job as if it had never run."""
        ...


def world_names() -> list[str]:
    return sorted([*_WORLDS, *plugins.declared(GROUP)])


def make_world(name: str, **options: Any) -> World:
    """A world by its name or `module:Class`; options go to its constructor. Raises UserError."""
    outside = plugins.declared(GROUP)
    factory = _WORLDS.get(name)
    if factory is None and (plugins.is_path(name) or name in outside):
        factory = plugins.load(outside.get(name, name), field="--world")
    if factory is None:
        near = difflib.get_close_matches(name.lower(), world_names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        remedy = f"{hint}give one of {', '.join(world_names())}, or MODULE:CLASS"
        raise UserError(field="--world", value=name, problem="unknown world", remedy=remedy)
    try:
        world = factory(**options)
    except TypeError as error:
        raise UserError(
            field="--world", value=name, problem=str(error), remedy="leave the option out or name another"
        ) from None
    if not hasattr(world, "jobs"):
        raise UserError(
            field="--world", value=name, problem="is no world: it has no jobs()", remedy="see isoscale.sim.worlds.world"
        )
    return world


def check_jobs(jobs: Sequence[SimJob], cluster: Cluster, *, field: str = "--world") -> None:
    """At load, not in mid-run: every job can run on every kind that it says, by its truth and by what is declared.

    A table that lacks a kind shows here. Raises UserError that names job, kind and remedy.
    """
    names: set[str] = set()
    if not jobs:
        raise UserError(field=field, value=0, problem="made no job of the trace", remedy="give another trace")
    for job in jobs:
        request = job.request
        if request.name in names:
            raise _bad(field, request.name, "is there twice", "give every job a name of its own")
        names.add(request.name)
        if not 1 <= request.min_devices <= request.requested_devices <= request.max_devices:
            problem = f"asks for {request.requested_devices} devices, of {request.min_devices} to {request.max_devices}"
            raise _bad(field, request.name, problem, "give 1 <= min <= requested <= max")
        kinds = [kind for kind in request.kinds or cluster.kinds if kind in cluster.kinds]
        if not kinds:
            raise _bad(field, request.name, f"may use {', '.join(request.kinds)}", f"give {', '.join(cluster.kinds)}")
        for kind in kinds:
            shape = ((kind, request.min_devices),)
            if not _rate(job.declared, shape) > 0:
                problem = f"what is declared of its speed knows no rate on {request.min_devices} devices of {kind}"
                raise _bad(field, request.name, problem, "declare one, or leave the kind out of request.kinds")
            try:
                seconds = job.truth.fresh().pace(shape, 0, 0.0, 0.0).seconds(0.0, job.truth.total_work)
            except (KeyError, UserError):
                seconds = float("inf")
            if not seconds < float("inf"):
                problem = f"its truth knows no speed on {request.min_devices} devices of {kind}"
                raise _bad(field, request.name, problem, "add the kind to its table, or leave it out of request.kinds")


def _rate(speed: SpeedModel, shape: tuple[tuple[str, int], ...]) -> float:
    try:
        return speed.rate(shape)
    except KeyError:  # a table by kind that has no such kind
        return 0.0


def _bad(field: str, job: str, problem: str, remedy: str) -> UserError:
    return UserError(field=f"{field} job {job}", value=job, problem=problem, remedy=remedy)
