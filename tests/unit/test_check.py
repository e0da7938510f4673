"""The pure parts of `isoscale check`: what to run, and what to conclude."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from isoscale.kinds import HostCapability
from isoscale.runtime.probes.verdict import NONDETERMINISTIC, Anatomy, ModuleFact, Report, Run, StepTime, judge
from isoscale.runtime.tools.check import default_kinds, native_kind, plan
from isoscale.types import JobSpec, Level

FAST, SLOW = "cpu-avx2", "cpu-sse"
SPEC = JobSpec(workers=2, kinds=(FAST, SLOW), profile="sse", script="train.py")


def fact(path: str, kind: str, digest: str = "", *, parameters: int = 0, called: bool = True) -> ModuleFact:
    return ModuleFact(path=path, type=kind, parameters=parameters, called=called, digest=digest)


def anatomy(fingerprint: str = "f", *, setup: str = "s", modules: list[ModuleFact] | None = None) -> Anatomy:
    return Anatomy(
        factors={"num_threads": "1"},
        kernels={"gemm": fingerprint, "sum": "same"},
        fingerprint=fingerprint,
        setup=setup,
        modules=modules or [],
        hidden=[],
        nondeterministic=[],
    )


def run(level: Level, kind: str, digest: str, step_s: float = 0.1, seen: Anatomy | None = None) -> Run:
    return Run(
        level=level, kind=kind, profile="", digest=digest, seconds=(9.0, 9.0, *[step_s] * 4), anatomy=seen or anatomy()
    )


def report(elastic: tuple[Run, Run], common: tuple[str, str] = ("h", "h"), *, off_s: float = 0.1) -> Report:
    at_common = [run("heterogeneous", kind, digest, 0.4) for kind, digest in zip((FAST, SLOW), common, strict=True)]
    return judge(SPEC, FAST, [run("off", FAST, "o", off_s), *elastic, *at_common])


def test_equal_digests_and_fingerprints_may_mix_at_elastic() -> None:
    found = report((run("elastic", FAST, "d"), run("elastic", SLOW, "d")))
    assert found.verdict.mix_at_elastic
    assert found.verdict.mix_at_heterogeneous
    assert found.verdict.differs_since == ""
    assert found.verdict.sentence.startswith("cpu-avx2 and cpu-sse may be mixed at elastic")


def test_equal_digests_with_other_fingerprints_are_equal_but_not_mixed() -> None:
    found = report((run("elastic", FAST, "d", seen=anatomy("f")), run("elastic", SLOW, "d", seen=anatomy("g"))))
    assert found.verdict.equal_at_elastic
    assert not found.verdict.mix_at_elastic
    assert found.differing_kernels == ["gemm"]
    assert "fingerprints differ" in found.verdict.sentence


@pytest.mark.parametrize(("setup", "since"), [("t", "set-up"), ("s", "training")])
def test_different_digests_say_since_when(setup: str, since: str) -> None:
    other = run("elastic", SLOW, "e", seen=anatomy("g", setup=setup))
    found = report((run("elastic", FAST, "d"), other))
    assert not found.verdict.equal_at_elastic
    assert not found.verdict.mix_at_elastic
    assert found.verdict.mix_at_heterogeneous
    assert found.verdict.differs_since == since
    assert "mixed at heterogeneous (profile sse) they are exact" in found.verdict.sentence


def test_different_digests_at_the_common_profile_leave_one_kind() -> None:
    found = report((run("elastic", FAST, "d"), run("elastic", SLOW, "e")), ("h", "i"))
    assert not found.verdict.mix_at_heterogeneous
    assert "this job needs one kind" in found.verdict.sentence


def test_runs_of_different_length_do_not_agree() -> None:
    short = replace(run("elastic", SLOW, "d"), seconds=(0.1, 0.1))
    assert not report((run("elastic", FAST, "d"), short)).verdict.equal_at_elastic


def test_costs_are_ratios_of_medians_after_the_warm_up() -> None:
    found = report((run("elastic", FAST, "d", 0.11), run("elastic", SLOW, "e", 0.2)), off_s=0.1)
    assert found.cost.elastic_over_off == 1.1
    assert found.cost.heterogeneous_over_elastic == {FAST: 3.6364, SLOW: 2.0}


@pytest.mark.parametrize(
    ("seconds", "median_s", "steps"),
    [((), 0.0, 0), ((5.0,), 0.0, 0), ((5.0, 1.0), 1.0, 1), ((5.0, 4.0, 1.0, 3.0, 2.0), 2.0, 3)],
)
def test_step_times_leave_out_the_warm_up(seconds: tuple[float, ...], median_s: float, steps: int) -> None:
    time = StepTime.of(seconds)
    assert (time.median_s, time.steps) == (median_s, steps)


def test_modules_are_grouped_by_type_with_the_worst_of_their_kind() -> None:
    def modules(kind: str) -> list[ModuleFact]:
        return [
            fact("Net", "Net", kind),
            fact("Net.a", "Conv2d", kind, parameters=10),
            fact("Net.b", "Conv2d", "same", parameters=5),
            fact("Net.c", "ReLU", "same"),
            fact("Net.d", "Own", kind),
            fact("Net.d.act", "ReLU", "same"),
            fact("Net.e", "Odd"),
            fact("Net.f", "ModuleList", called=False),
            # Not a part of Net.a, whatever its name begins with.
            fact("Net.ab", "Other", "same"),
        ]

    seen = [run("elastic", kind, kind, seen=anatomy(kind, modules=modules(kind))) for kind in (FAST, SLOW)]
    found = {module.type: module for module in report((seen[0], seen[1])).modules}
    assert {name: module.depends for name, module in found.items()} == {
        "Net": "through its parts",
        "Conv2d": "yes",
        "ReLU": "no",
        "Own": "yes",
        "Odd": "unknown",
        "ModuleList": "not called",
        "Other": "no",
    }
    assert (found["Conv2d"].count, found["Conv2d"].parameters) == (2, 15)


def test_an_operator_without_a_deterministic_form_ends_it() -> None:
    failed = Run(level="elastic", kind=FAST, profile="avx2", nondeterministic="put_")
    found = judge(SPEC, FAST, [run("off", FAST, "o"), failed])
    assert found.nondeterministic == ["put_"]
    assert not found.verdict.mix_at_elastic
    assert not found.verdict.mix_at_heterogeneous
    assert found.verdict.differs_since == ""
    assert "torch cannot run put_ deterministically" in found.verdict.sentence
    assert found.factors == {FAST: {"num_threads": "1"}}
    assert found.cost.elastic_over_off is None


def test_the_name_of_the_operator_is_found_in_torchs_message() -> None:
    message = "RuntimeError: put_ does not have a deterministic implementation, but you set 'torch.use_determ"
    found = NONDETERMINISTIC.search(message)
    assert found is not None
    assert found[1] == "put_"


def test_one_kind_has_nothing_to_mix() -> None:
    spec = replace(SPEC, kinds=(FAST,))
    found = judge(spec, FAST, [run("off", FAST, "o"), run("elastic", FAST, "d"), run("heterogeneous", FAST, "h")])
    assert found.verdict.sentence.startswith("One kind, cpu-avx2, was checked")


def test_a_report_survives_json() -> None:
    found = report((run("elastic", FAST, "d"), run("elastic", SLOW, "d")))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Report) == found


def test_off_runs_first_and_on_the_native_kind() -> None:
    assert [str(one) for one in plan((SLOW, FAST))] == [
        "off on cpu-avx2",
        "elastic on cpu-sse",
        "elastic on cpu-avx2",
        "heterogeneous on cpu-sse",
        "heterogeneous on cpu-avx2",
    ]
    assert native_kind((SLOW, "cpu")) == "cpu"
    assert native_kind((SLOW,)) == SLOW


def test_default_kinds_are_those_of_the_host() -> None:
    assert default_kinds(HostCapability(isa="avx512")) == (FAST, SLOW)
    assert default_kinds(HostCapability(isa="sse")) == (SLOW,)
    assert default_kinds(HostCapability(isa="other")) == ("cpu",)
