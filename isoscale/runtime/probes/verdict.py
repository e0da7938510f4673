"""From what short runs left behind to whether a job may mix kinds, and at what price. Pure: no torch, no processes.

`judge` takes `Run`s, each with the `Anatomy` that its executor wrote, and gives a `Report`. Two runs agree if their
digests (models and optimizers after the same steps) are equal bit for bit. That is measured, not derived: it holds
for these steps on this host, and a report says how many steps there were.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from isoscale.runtime.probes.steadiness import spread_of
from isoscale.types import JobSpec, Level

__all__ = [
    "NONDETERMINISTIC",
    "Anatomy",
    "Cost",
    "HiddenState",
    "MixVerdict",
    "ModuleFact",
    "ModuleType",
    "Report",
    "Run",
    "StepTime",
    "judge",
]

#: torch's complaint about an operator, in errors and in warnings
NONDETERMINISTIC = re.compile(r"(\S+) does not have a deterministic implementation")

#: first steps of a run that are not timed: allocators, caches and lazily built kernels
WARM_UP_STEPS = 2

#: "no": same bits on every kind, measured alone. "yes": not. "through its parts": only because a part does not.
#: "not called": forward of this module never runs as such. "unknown": could not be run on its own.
Depends = Literal["no", "yes", "through its parts", "not called", "unknown"]
_GRAVITY: tuple[Depends, ...] = ("not called", "no", "unknown", "through its parts", "yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFact:
    """One module of a model. `digest` is over forward and backward on fixed inputs, alone; "" if that did not run."""

    path: str
    type: str
    parameters: int
    called: bool
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenState:
    """An attribute of a module that may hold state, though it is neither parameter nor buffer."""

    where: str
    holds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """What an executor saw from inside (`runtime.probes.anatomy`)."""

    factors: dict[str, str]
    #: digest of every kernel of the fingerprint, and of all of them
    kernels: dict[str, str]
    fingerprint: str
    #: digest of the state before the first step
    setup: str
    modules: list[ModuleFact]
    hidden: list[HiddenState]
    #: operators that torch cannot run deterministically; looked for at level `off` only
    nondeterministic: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A short run of the job on one executor. `nondeterministic` is the operator that ended it, "" if none did."""

    level: Level
    kind: str
    profile: str
    digest: str = ""
    seconds: tuple[float, ...] = ()
    anatomy: Anatomy | None = None
    nondeterministic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Step times of a run after its warm-up, in seconds. All zero if there was no step left to time."""

    median_s: float = 0.0
    #: a quarter of the steps took less, and a quarter more
    low_s: float = 0.0
    high_s: float = 0.0
    fastest_s: float = 0.0
    slowest_s: float = 0.0
    steps: int = 0

    @classmethod
    def of(cls, seconds: Sequence[float]) -> StepTime:
        timed = sorted(seconds[min(WARM_UP_STEPS, len(seconds) - 1) :]) if len(seconds) > 1 else []
        if not timed:
            return cls()
        spread = spread_of(timed)
        return cls(
            median_s=spread.median_s,
            low_s=spread.low_s,
            high_s=spread.high_s,
            fastest_s=timed[0],
            slowest_s=timed[-1],
            steps=len(timed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleType:
    """All modules of one type: their number, their own parameters, and whether bits depend on the kind."""

    type: str
    count: int
    parameters: int
    depends: Depends


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    level: Level
    kind: str
    profile: str
    digest: str
    time: StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class MixVerdict:
    """May the kinds share this job? `mix_at_*` is what a scheduler wants to know; the rest says why."""

    #: digests equal and fingerprints equal, so executors of these kinds are not refused
    mix_at_elastic: bool
    mix_at_heterogeneous: bool
    #: digests after the steps equal at `elastic`, whatever the fingerprints say
    equal_at_elastic: bool
    #: "set-up" (before the first step), "training", or "" if nothing differs at `elastic`
    differs_since: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Ratios of median step times, None where there is nothing to divide. 1.0 is free, 2.0 twice as slow."""

    elastic_over_off: float | None
    #: the common profile over each kind's own best
    heterogeneous_over_elastic: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `isoscale check` prints and writes; see `runtime.tools.check` for the fields as JSON."""

    format: int = 1
    script: str
    script_args: tuple[str, ...]
    workers: int
    seed: int
    threads: int
    steps: int
    kinds: tuple[str, ...]
    native_kind: str
    common_profile: str
    verdict: MixVerdict
    cost: Cost
    nondeterministic: list[str]
    modules: list[ModuleType]
    hidden_state: list[HiddenState]
    factors: dict[str, dict[str, str]]
    fingerprints: dict[str, str]
    differing_kernels: list[str]
    runs: list[RunReport] = field(default_factory=list)


def judge(spec: JobSpec, native_kind: str, runs: Sequence[Run]) -> Report:
    """The report on `runs`: `off` on the native kind, `elastic` and `heterogeneous` on every kind of `spec`.

    Runs that an operator without a deterministic form ended may be all there is at their level.
    """
    off = [run for run in runs if run.level == "off"]
    elastic = {run.kind: run for run in runs if run.level == "elastic"}
    common = {run.kind: run for run in runs if run.level == "heterogeneous"}
    seen = {kind: run.anatomy for kind, run in elastic.items() if run.anatomy is not None}
    # Better the factors of `off` than none, where nothing else ran.
    seen = seen or {run.kind: run.anatomy for run in off if run.anatomy is not None}
    known = [name for run in off if run.anatomy is not None for name in run.anatomy.nondeterministic]
    operators = sorted({*known, *(run.nondeterministic for run in runs if run.nondeterministic)})
    cost = _cost(native_kind, off, elastic, common)
    first = next(iter(seen.values()), None)
    return Report(
        script=spec.script,
        script_args=spec.script_args,
        workers=spec.workers,
        seed=spec.seed,
        threads=spec.threads,
        steps=min((len(run.seconds) for run in runs if run.digest), default=0),
        kinds=spec.kinds,
        native_kind=native_kind,
        common_profile=spec.profile,
        verdict=_verdict(spec, elastic, common, seen, operators, cost),
        cost=cost,
        nondeterministic=operators,
        modules=_module_types(list(seen.values())),
        hidden_state=first.hidden if first is not None else [],
        factors={kind: anatomy.factors for kind, anatomy in seen.items()},
        fingerprints={kind: anatomy.fingerprint for kind, anatomy in seen.items()},
        differing_kernels=_differing([anatomy.kernels for anatomy in seen.values()]),
        runs=[
            RunReport(level=r.level, kind=r.kind, profile=r.profile, digest=r.digest, time=StepTime.of(r.seconds))
            for r in runs
        ],
    )


def _verdict(
    spec: JobSpec,
    elastic: Mapping[str, Run],
    common: Mapping[str, Run],
    seen: Mapping[str, Anatomy],
    operators: Sequence[str],
    cost: Cost,
) -> MixVerdict:
    equal = _agree(spec.kinds, elastic)
    same_class = len({anatomy.fingerprint for anatomy in seen.values()}) == 1
    equal_common = _agree(spec.kinds, common)
    since = ""
    if not equal and len(elastic) == len(spec.kinds) and all(run.digest for run in elastic.values()):
        since = "set-up" if len({anatomy.setup for anatomy in seen.values()}) > 1 else "training"
    return MixVerdict(
        mix_at_elastic=equal and same_class,
        mix_at_heterogeneous=equal_common,
        equal_at_elastic=equal,
        differs_since=since,
        sentence=_sentence(spec, equal, same_class, equal_common, since, operators, cost),
    )


def _sentence(
    spec: JobSpec, equal: bool, same_class: bool, equal_common: bool, since: str, operators: Sequence[str], cost: Cost
) -> str:
    if operators and not equal_common:
        return (
            f"This job has equal bits at no level, since torch cannot run {', '.join(operators)} deterministically; "
            "replace it, or use --determinism off."
        )
    paid = f"elastic takes {_times(cost.elastic_over_off)} the step time of off"
    if len(spec.kinds) == 1:
        return f"One kind, {spec.kinds[0]}, was checked: there is nothing to mix; {paid}."
    kinds = _listed(spec.kinds)
    if equal and same_class:
        return f"{kinds} may be mixed at elastic: equal bits after every step that was run; {paid}."
    if equal:
        start = (
            f"{kinds} gave equal bits here at elastic, but their fingerprints differ, so isoscale refuses to mix them"
        )
    else:
        where = "already in set-up (initial values)" if since == "set-up" else "from the first training steps on"
        start = f"{kinds} give different bits at elastic, {where}"
    if not equal_common:
        return f"{start}; nor do they agree at heterogeneous (profile {spec.profile}), so this job needs one kind."
    ratios = _listed([f"{_times(ratio)} {kind}'s own" for kind, ratio in cost.heterogeneous_over_elastic.items()])
    return f"{start}; mixed at heterogeneous (profile {spec.profile}) they are exact, with step times {ratios}; {paid}."


def _agree(kinds: Sequence[str], runs: Mapping[str, Run]) -> bool:
    """Every kind ran, for the same number of steps, to the same digest."""
    ends = {(len(run.seconds), run.digest) for run in runs.values()}
    return set(runs) == set(kinds) and len(ends) == 1 and all(digest for _, digest in ends)


def _cost(native: str, off: Sequence[Run], elastic: Mapping[str, Run], common: Mapping[str, Run]) -> Cost:
    def median(run: Run | None) -> float:
        return StepTime.of(run.seconds).median_s if run is not None and run.digest else 0.0

    def ratio(above: Run | None, below: Run | None) -> float | None:
        return round(median(above) / median(below), 4) if median(above) and median(below) else None

    return Cost(
        elastic_over_off=ratio(elastic.get(native), off[0] if off else None),
        heterogeneous_over_elastic={kind: ratio(run, elastic.get(kind)) for kind, run in common.items()},
    )


def _module_types(anatomies: Sequence[Anatomy]) -> list[ModuleType]:
    """By type, in the order of first appearance in the first anatomy."""
    if not anatomies:
        return []
    by_path = [{fact.path: fact for fact in anatomy.modules} for anatomy in anatomies]
    differing = {path for path in by_path[0] if _depends_alone(path, by_path) == "yes"}
    found: dict[str, list[tuple[ModuleFact, Depends]]] = {}
    for path, fact in by_path[0].items():
        depends = _depends_alone(path, by_path)
        if depends == "yes" and any(_is_part(other, path) for other in differing):
            depends = "through its parts"
        found.setdefault(fact.type, []).append((fact, depends))
    return [
        ModuleType(
            type=name,
            count=len(facts),
            parameters=sum(fact.parameters for fact, _ in facts),
            depends=max((depends for _, depends in facts), key=_GRAVITY.index),
        )
        for name, facts in found.items()
    ]


def _depends_alone(path: str, by_path: Sequence[Mapping[str, ModuleFact]]) -> Depends:
    facts = [facts.get(path) for facts in by_path]
    if all(fact is not None and not fact.called for fact in facts):
        return "not called"
    digests = {fact.digest if fact is not None else "" for fact in facts}
    if "" in digests or len(facts) < 2:
        return "unknown"
    return "no" if len(digests) == 1 else "yes"


def _is_part(path: str, whole: str) -> bool:
    return path != whole and path.startswith(f"{whole}.")


def _differing(kernels: Sequence[Mapping[str, str]]) -> list[str]:
    names = sorted({name for one in kernels for name in one})
    return [name for name in names if len({one.get(name) for one in kernels}) > 1]


def _times(ratio: float | None) -> str:
    return "an unknown multiple of" if ratio is None else f"{ratio:.2f} times"


def _listed(words: Sequence[str]) -> str:
    """
    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
