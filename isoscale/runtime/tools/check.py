"""Runs a job for a few steps at every level and kind that matter, so that `runtime.probes.verdict` can judge it.

EasyScale's model analysis, measured instead of looked up. One executor hosts all logical workers; the runs are
`off` on the native kind, `elastic` on every kind (each at its own best), `heterogeneous` on every kind (all at the
common profile). They follow one another in temporary directories, so their step times are not interleaved: a ratio
tells 1.0 from 2.0, not 1.00 from 1.05.

The report as JSON, one object (`isoscale check --json`, and check.json in `--out`):

    format              1
    script, script_args, workers, seed, threads
                        the job that was checked
    steps               committed steps after which digests were compared
    kinds, native_kind  the kinds that were compared; the one on which `off` was timed
    common_profile      numeric profile of the runs at `heterogeneous`
    verdict             mix_at_elastic, mix_at_heterogeneous: may these kinds share the job at that level?
                        equal_at_elastic: were digests equal; differs_since: "set-up", "training" or "";
                        sentence: all of it in words
    cost                elastic_over_off, heterogeneous_over_elastic by kind: ratios of median step times or null
    nondeterministic    operators that torch cannot run deterministically
    modules             by type: type, count, parameters, depends ("no", "yes", "through its parts", "not called",
                        "unknown"): do bits of this module's kernels depend on the kind?
    hidden_state        where, holds: attributes of modules that may be state but are no buffers
    factors             by kind: the accuracy-relevant factors in force at `elastic`, as text
    fingerprints        by kind, at `elastic`
    differing_kernels   kernels of the fingerprint that differ between kinds
    runs                level, kind, profile, digest, time: median_s, fastest_s, slowest_s, steps (after the warm-up)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from isoscale.errors import IsoscaleError
from isoscale.kinds import DeviceSet, HostCapability, host_capability, profile_of
from isoscale.protocol.events import read_events
from isoscale.runtime.code.freezing import Frozen, freeze_anew
from isoscale.runtime.coordinator.run import Observer, RunResult, run_job
from isoscale.runtime.probes.verdict import NONDETERMINISTIC, Anatomy, Report, Run, judge
from isoscale.types import JobSpec, Level, Settings

__all__ = ["CheckFailedError", "Plan", "check_job", "default_kinds", "native_kind", "plan"]

_SETTINGS = Settings(lasting=False)


class CheckFailedError(IsoscaleError):
    """The script failed in one of the runs, in a way that is not a finding."""

    def __init__(self, what: str, result: RunResult) -> None:
        super().__init__(f"{what}: {result.error}")
        self.result = result


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run to come: which kind, at which level."""

    level: Level
    kind: str

    def __str__(self) -> str:
        return f"{self.level} on {self.kind}"


def default_kinds(host: HostCapability | None = None) -> tuple[str, ...]:
    """The kinds with a name of their own that this host can be, fastest first; `cpu` where there is none."""
    isa = (host or host_capability()).isa
    return {"other": ("cpu",), "sse": ("cpu-sse",)}.get(isa, ("cpu-avx2", "cpu-sse"))


def native_kind(kinds: Sequence[str]) -> str:
    """The kind that is nearest to an uncapped process.

    >>> native_kind(["cpu-sse", "cpu-avx2"])
    'cpu-avx2'
    """
    return next((kind for kind in ("cuda", "cpu", "cpu-avx2") if kind in kinds), kinds[0])


def plan(kinds: Sequence[str]) -> list[Plan]:
    """`off` comes first: it runs whatever the script does, and finds what the other levels would stop at."""
    elastic: list[Plan] = [Plan(level="elastic", kind=kind) for kind in kinds]
    common: list[Plan] = [Plan(level="heterogeneous", kind=kind) for kind in kinds]
    return [Plan(level="off", kind=native_kind(kinds)), *elastic, *common]


async def check_job(spec: JobSpec, watch: Callable[[Plan, int, int], AbstractContextManager[Observer]]) -> Report:
    """Run everything and judge. `spec.profile` names the common profile of `spec.kinds`, `spec.until` the steps.

    `watch` gives the observer of each run, by its number and the number of all. Raises CheckFailedError if the script
    fails. Cancelling the task ends all processes.
    """
    runs: list[Run] = []
    plans = plan(spec.kinds)
    with tempfile.TemporaryDirectory(prefix="isoscale-check-") as kept:
        code = freeze_anew(replace(spec, out=kept))  # the same for all runs
        for number, one in enumerate(plans, 1):
            # What torch cannot do deterministically on one kind it cannot on another.
            if any(run.nondeterministic for run in runs):
                break
            with watch(one, number, len(plans)) as observer:
                runs.append(await _run(spec, one, code, observer))
    return judge(spec, native_kind(spec.kinds), runs)


async def _run(spec: JobSpec, one: Plan, code: Frozen, observer: Observer) -> Run:
    # Named by the profile at which this run's executor computes.
    profile = spec.profile if one.level == "heterogeneous" else ""
    shown = profile or profile_of(one.kind).name
    with tempfile.TemporaryDirectory(prefix="isoscale-check-") as out:
        run_spec = replace(spec, determinism=one.level, profile=profile, out=out, audit_every=0, anatomy=True)
        result = await run_job(run_spec, DeviceSet(((one.kind, 1),)), observer, settings=_SETTINGS, code=code)
        if result.exit_code != 0:
            operator = _nondeterministic(result) if one.level != "off" else ""
            if not operator:
                raise CheckFailedError(str(one), result)
            return Run(level=one.level, kind=one.kind, profile=shown, nondeterministic=operator)
        anatomy = msgspec.json.decode((Path(out) / "anatomy.json").read_bytes(), type=Anatomy)
        seconds = tuple(_seconds(Path(out) / "events.jsonl"))
    return Run(level=one.level, kind=one.kind, profile=shown, digest=result.digest, seconds=seconds, anatomy=anatomy)


def _seconds(log: Path) -> Iterator[float]:
    return (float(event["seconds"]) for event in read_events(log) if event["event"] == "step")


def _nondeterministic(result: RunResult) -> str:
    """The operator at which torch's deterministic mode ended the run, "" if something else did."""
    found = NONDETERMINISTIC.search(result.traceback)
    return found[1] if found else ""
