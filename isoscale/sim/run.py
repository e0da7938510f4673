"""One experiment: a trace, a cluster, several policies and seeds; everything that they share is made once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from isoscale import limits
from isoscale.errors import UserError
from isoscale.scheduling.policy import Policy, make_policy
from isoscale.scheduling.state import Cluster
from isoscale.sim.builtin import find_trace
from isoscale.sim.cluster_spec import parse_cluster
from isoscale.sim.disturbances import ServingLoad, serving_load
from isoscale.sim.engine import Options, Outcome, Simulation
from isoscale.sim.interference import Slowdown
from isoscale.sim.job import SimJob
from isoscale.sim.market import SpotMarket, price_steps, takings
from isoscale.sim.recorder import Recorder
from isoscale.sim.workload import Workload, make_cluster, make_jobs
from isoscale.sim.worlds.world import World, check_jobs, make_world

__all__ = ["Experiment", "named", "parse_policies"]

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What to simulate. Seeds count up from the workload's own."""

    trace: str
    cluster: str
    format: str = "auto"
    workload: Workload = field(default_factory=Workload)
    options: Options = field(default_factory=Options)
    serving: ServingLoad | None = None
    market: SpotMarket | None = None
    #: who makes jobs of the trace: "" tables and curves (`workload`), else a world's NAME or MODULE:CLASS, with options
    world: str = ""

    def cluster_value(self) -> Cluster:
        return make_cluster(parse_cluster(self.cluster))

    def world_value(self) -> World:
        name, options = named(self.world, field="--world")
        return make_world(name, **options)

    def interference(self) -> Slowdown:
        """As wanted; else what the world says of neighbours, if it says anything."""
        asked = self.options.interference
        if asked.matters or not self.world:
            return asked
        found: Slowdown = getattr(self.world_value(), "interference", asked)
        return found

    def jobs(self, seed: int) -> list[SimJob]:
        """The jobs under one seed: it moves a generated trace, and the speeds that are drawn."""
        workload = dataclasses.replace(self.workload, seed=self.workload.seed + seed)
        trace, cluster = find_trace(self.trace, self.format, seed=workload.seed), self.cluster_value()
        if not self.world:
            return make_jobs(trace, cluster, workload)
        chosen = [
            dataclasses.replace(job, submit_s=job.submit_s - workload.begin_s)
            for job in trace
            if workload.begin_s <= job.submit_s < workload.end_s
        ]
        jobs = list(self.world_value().jobs(chosen, cluster, seed=workload.seed))
        check_jobs(jobs, cluster)
        return jobs

    def simulate(
        self,
        policy: Policy,
        jobs: Sequence[SimJob],
        seed: int,
        recorder: Recorder | None = None,
        on_progress: Callable[[int, float], None] | None = None,
    ) -> Outcome:
        cluster = self.cluster_value()
        options = dataclasses.replace(self.options, seed=self.options.seed + seed, interference=self.interference())
        # Long enough for the last job to come, and to wait its turn.
        until = 2 * max((job.request.submitted_s for job in jobs), default=0.0) + 14 * _DAY_S
        if self.market is not None:
            market = dataclasses.replace(self.market, seed=self.market.seed + seed)
            options = _with_market(market, cluster, until, options)
        if self.serving is not None:
            _check_lendings(self.serving, cluster, until)
            lendings, _ = serving_load(dataclasses.replace(self.serving, seed=self.serving.seed + seed), cluster, until)
            options = dataclasses.replace(options, lendings=lendings)
        return Simulation(jobs, cluster, policy, options, recorder).run(on_progress)


def _with_market(market: SpotMarket, cluster: Cluster, until_s: float, options: Options) -> Options:
    if until_s / market.step_s * max(len(cluster.nodes), len(cluster.kinds)) > limits.MAX_LENDINGS:
        raise UserError(
            field="--market",
            value=f"step_s={market.step_s:g}",
            problem=f"prices for {until_s / _DAY_S:.0f} days are too many",
            remedy="give a longer step_s or a shorter trace (--window)",
        )
    return dataclasses.replace(
        options,
        prices=price_steps(market, cluster, until_s),
        lendings=takings(market, cluster, until_s),
        notice_s=market.notice_s,
    )


def _check_lendings(serving: ServingLoad, cluster: Cluster, until_s: float) -> None:
    """Before they are listed."""
    if until_s / serving.step_s * len(cluster.nodes) > limits.MAX_LENDINGS:
        raise UserError(
            field="--serving",
            value=f"{serving.low:g}-{serving.high:g}",
            problem=f"{len(cluster.nodes)} nodes that change hands for {until_s / _DAY_S:.0f} days are too much",
            remedy="give a shorter trace (--window) or a smaller cluster",
        )


def parse_policies(text: str, *, field: str = "--policy") -> Iterator[tuple[str, Callable[[], Policy]]]:
    """(label, maker) for each policy of `A,B(option=2),C`: options go to the policy."""
    names: set[str] = set()
    if len(text) > limits.MAX_SPEC_CHARS:
        raise UserError(field=field, value=text, problem="too long for a list of policies", remedy="give A,B,C")
    for part in _split(text):
        name, options = named(part, field=field)
        if part in names:
            raise UserError(field=field, value=part, problem="is named twice", remedy="name each policy once")
        names.add(part)
        make = _maker(name, options, part, field)
        make()
        yield part, make


def named(text: str, *, field: str) -> tuple[str, dict[str, object]]:
    """`NAME(a=1,b=x)` as a name and options."""
    name, bracket, rest = text.partition("(")
    options: dict[str, object] = {}
    for item in filter(None, rest.rstrip(")").split(",") if bracket else ()):
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise UserError(field=field, value=text, problem=f"{item!r} is not OPTION=VALUE", remedy="give NAME(a=1)")
        options[key.strip()] = _value(value.strip())
    return name.strip(), options


def _maker(name: str, options: dict[str, object], part: str, field: str) -> Callable[[], Policy]:
    def make() -> Policy:
        try:
            return make_policy(name, **options)
        except TypeError as error:
            raise UserError(
                field=field, value=part, problem=str(error), remedy="leave the option out or name another"
            ) from None

    return make


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += letter
    parts = [part.strip() for part in [*parts, current]]
    if not all(parts) or depth:
        raise UserError(field="--policy", value=text, problem="a policy without a name", remedy="give A,B,C")
    return parts


def _value(text: str) -> object:
    if limits.is_whole(text):
        return int(text)
    if limits.is_decimal(text):
        return float(text)
    return {"true": True, "false": False}.get(text.lower(), text)
