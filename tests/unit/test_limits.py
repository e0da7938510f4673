"""Absurd numbers and texts: refused in one short line, or a value, and nothing large is built on the way."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from isoscale import env, limits
from isoscale.cli.devices import device_set, devices_and_plan, parse_plan
from isoscale.cli.plan import grow, split
from isoscale.cli.profile import _parse_batches
from isoscale.cli.simulate_options import (
    costs_of,
    failures_of,
    kind_speeds_of,
    quotas_of,
    retry_of,
    serving_of,
    window_of,
)
from isoscale.data.loader import check_options
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet, parse_kinds
from isoscale.protocol import messages as m
from isoscale.runtime.membership.scale_request import check_scale, parse_target
from isoscale.runtime.training.stream import stream_rule
from isoscale.sim.cluster_spec import parse_cluster, parse_devices
from isoscale.sim.run import parse_policies
from isoscale.sim.synthetic import parse_generator
from isoscale.sim.traces import TraceJob, read_trace
from isoscale.types import JobSpec

SPEC = JobSpec(workers=4, kinds=("cpu", "cpu-avx2"))
PRESENT = DeviceSet.parse("cpu*2")
#: a cluster of a hundred thousand nodes is the largest thing that is built
MOST_BYTES = 64 * 2**20
LONGEST_MESSAGE = 3_000

Parser = Callable[[str], Any]
#: each takes a text that a person or a peer wrote; {} stands for the absurd part
PARSERS: dict[str, tuple[Parser, tuple[str, ...]]] = {
    "target": (lambda text: parse_target(text, PRESENT, SPEC), ("{}", "+{}", "-{}", "cpu*{}", "cpu*{}+cpu*{}")),
    "devices": (lambda text: list(DeviceSet.parse(text)), ("{}", "cpu*{}", "cpu*2+cpu-sse*{}")),
    "--devices": (lambda text: device_set(None, text, 4), ("cpu*{}", "{}")),
    "--plan": (lambda text: parse_plan(text, 4, None), ("{}", "0:{}", "{}:2", "0:2,{}:cpu*{}")),
    "--plan and --executors": (lambda text: devices_and_plan(2, None, text, 4, 9), ("{}:1", "1:{}")),
    "--kinds": (parse_kinds, ("{}", "cpu,{}")),
    "--batches": (_parse_batches, ("{}", "1,{}")),
    "--cluster": (parse_cluster, ("{}", "V100*{}", "{}x(T4*4)", "2x(T4*{})", "{}x({})", "T4*{}+T4*{}")),
    "plan --devices": (parse_devices, ("{}", "V100*{}", "V100*{}+V100*{}")),
    "plan split": (lambda text: split(4, text, "V100=2"), ("V100*{}",)),
    "plan split --speeds": (lambda text: split(4, "V100*2", text), ("V100={}",)),
    "plan grow --more": (lambda text: grow(4, "V100*2", "V100=2", more=text), ("V100*{}",)),
    "--trace": (parse_generator, ("philly:jobs={}", "philly:days={}", "philly:seed={},hours={}", "philly:{}")),
    "--policy": (lambda text: list(parse_policies(text)), ("fifo(locality_s={})", "easyscale(top={})", "{}")),
    "--costs": (costs_of, ("free:start_s={}", "free:{}", "{}")),
    "--failures": (failures_of, ("{}", "{}/{}", "10/{}")),
    "--serving": (serving_of, ("{}-{}", "0-{}", "{}")),
    "--window": (window_of, ("{}:{}", "{}", "0:{}")),
    "--quotas": (quotas_of, ("a={}", "{}", "{}={}")),
    "--retry": (retry_of, ("{}",)),
    "--kind-speeds": (kind_speeds_of, ("V100={}", "{}")),
    "ISOSCALE_WORKERS": (lambda text: env.num_logical_workers({env.WORKERS: text}), ("{}",)),
    "ISOSCALE_SEED": (lambda text: env.seed({env.SEED: text}), ("{}",)),
    "ISOSCALE_EXECUTOR": (lambda text: env.executor({env.EXECUTOR: text}), ("{}",)),
    "whole": (lambda text: limits.whole(text, "field", limits.STEPS), ("{}",)),
    "decimal": (lambda text: limits.decimal(text, "field", limits.HOURS), ("{}",)),
}
ABSURD = (
    *(
        "",
        "0",
        "-1",
        "-0",
        "1e400",
        "1e308",
        "-1e308",
        "nan",
        "inf",
        "-inf",
        "\u0663",
        "\uff11\uff12",
        "1_0",
        "0x10",
        "1.5",
        " 7 ",
    ),
    *("9" * digits for digits in (4, 6, 9, 30, 31, 308, 4300, 5000, 200_000)),
    *(str(10**9), str(2**31), str(2**63), str(2**64), "1e-300", "+" * 5000, "cpu+" * 50_000, "(" * 5000, "=" * 5000),
    *("1," * 50_000, "1:1," * 50_000, "\0", "\ud800", "a" * 10**6, "\n", "%s", "{}"),
)


def refusal(read: Callable[[], Any]) -> str:
    """Why something is refused, in one short line; "" if it is not."""
    try:
        read()
    except UserError as error:
        message = str(error)
    else:
        return ""
    assert len(message) < LONGEST_MESSAGE
    assert "\n" not in message
    return message


def bounded(name: str, text: str) -> None:
    read, _ = PARSERS[name]
    tracemalloc.start()
    try:
        refusal(lambda: read(text))
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", PARSERS)
def test_what_is_absurd_costs_little_and_is_answered_in_a_line(name: str) -> None:
    for form in PARSERS[name][1]:
        for absurd in ABSURD:
            bounded(name, form.replace("{}", absurd))


NUMBERS = st.one_of(
    st.integers().map(str),
    st.integers(min_value=10**3, max_value=10**40).map(str),
    st.floats().map(repr),
    st.text(max_size=30),
    st.sampled_from(ABSURD),
)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), absurd=NUMBERS)
def test_so_is_whatever_else_comes(name: str, data: st.DataObject, absurd: str) -> None:
    form = data.draw(st.sampled_from(PARSERS[name][1]))
    bounded(name, form.replace("{}", absurd))


# ---- what is refused is refused for the right reason ----


@pytest.mark.parametrize("target", ["20000000", "999999999", "9" * 30, "+20000000", "-999999999"])
def test_a_mistyped_target_is_answered_with_the_range_of_the_job(target: str) -> None:
    with pytest.raises(UserError, match=r"executors for 4 logical workers; give 1 \.\. 4$"):
        parse_target(target, PRESENT, SPEC)


def test_a_target_of_a_megabyte_is_refused_unread() -> None:
    with pytest.raises(UserError, match=r"^target=cpu\+.*\.\.\. \(1,000,000 characters\): too long") as caught:
        parse_target("cpu+" * 250_000, PRESENT, SPEC)
    assert len(str(caught.value)) < 600


def test_requests_that_no_client_of_ours_sends() -> None:
    check_scale(m.Scale(target="2", away=(1, 2)))
    with pytest.raises(UserError, match="away=100,000 executors: more than a job can have"):
        check_scale(m.Scale(target="2", away=tuple(range(100_000))))
    with pytest.raises(UserError, match="reason="):
        check_scale(m.Scale(target="2", reason="x" * 10**6))


@given(st.integers(1, 300), st.integers(1, 300), st.integers(-400, 400))
@example(2, 4, 0)
def test_counts_keep_the_first_devices_and_grow_by_the_first_kind(first: int, second: int, change: int) -> None:
    present = DeviceSet((("cpu", first), ("cpu-avx2", second)))
    total = first + second + change
    spec = JobSpec(workers=1000, kinds=("cpu", "cpu-avx2"))
    if total < 1:
        with pytest.raises(UserError):
            parse_target(f"{change:+d}", present, spec)
        return
    target = parse_target(str(total), present, spec)
    expected = ["cpu"] * max(0, change) + list(present)
    assert list(target) == expected[:total]
    assert parse_target(f"{change:+d}", present, spec) == target


def test_no_set_of_devices_has_more_than_a_job_may_have_executors() -> None:
    most = int(limits.EXECUTORS.most)
    assert DeviceSet((("cpu", most),)).total == most
    for groups in ((("cpu", most + 1),), (("cpu", most), ("cpu-sse", 1))):
        with pytest.raises(UserError, match="devices="):
            DeviceSet(groups)
    with pytest.raises(UserError, match=r"--devices=cpu\*99999999999: is too large"):
        DeviceSet.parse("cpu*99999999999")


def test_plans_have_thousands_of_entries_at_most() -> None:
    many = ",".join(f"{step}:1" for step in range(limits.MAX_PLAN_ENTRIES))
    assert len(parse_plan(many, 4, None)) == limits.MAX_PLAN_ENTRIES
    with pytest.raises(UserError, match=r"^--plan=0:1,1:1,.*\.\.\. \(.* characters\): has too many entries"):
        parse_plan(f"{many},{limits.MAX_PLAN_ENTRIES}:1", 4, None)


def test_batch_sizes() -> None:
    sizes: list[Any] = [0, -1, 10**13, 10**30, 10**5000, 1.5, float("inf"), float("nan"), "8", None]
    for size in sizes:
        with pytest.raises(UserError, match=r"^job\.loader\(batch_size=\.\.\.\)="):
            check_options([1, 2, 3], batch_size=size, shuffle=False, train=True, options={})
        with pytest.raises(UserError, match=r"^job\.stream\(batch_size=\.\.\.\)="):
            stream_rule(size, {}, num_logical_workers=2, seed=0)


@pytest.mark.parametrize("count", [-1, 10**6, 10**30])
def test_loader_processes(count: int) -> None:
    with pytest.raises(UserError, match=r"num_workers"):
        check_options([1, 2, 3], batch_size=1, shuffle=False, train=True, options={"num_workers": count})
    with pytest.raises(UserError, match=r"num_workers"):
        stream_rule(1, {"num_workers": count}, num_logical_workers=2, seed=0)


HEADER = "name,submit_s,devices,duration_s,workers,batch,turn_s,failures"


@pytest.mark.parametrize("column", range(1, 8))
def test_traces(column: int, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    for absurd in (one for one in ABSURD if "\ud800" not in one):
        values = ["a", "0", "1", "10", "1", "8", "V100=1", "0.5=GPU"]
        values[column] = f"V100={absurd}" if column == 6 else f"{absurd}=GPU" if column == 7 else absurd
        trace.write_text(f"{HEADER}\n{','.join(values)}\n")
        jobs: list[TraceJob] = []
        message = refusal(lambda jobs=jobs: jobs.extend(read_trace(trace, "isoscale")))
        assert jobs or str(trace) in message
        for job in jobs:
            assert job.devices <= limits.CLUSTER_DEVICES.most
            assert all(abs(number) <= limits.MAX_NUMBER for number in (job.submit_s, job.duration_s or 0, job.batch))


NO_TRACES = (b"\xff\xfe\x00", b"a,b\n\x00\n", b"name,submit_s,devices,steps\na,0,1," + b"9" * 10**6)


@pytest.mark.parametrize("number", range(len(NO_TRACES)))
def test_a_trace_that_is_none(number: int, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_bytes(NO_TRACES[number])
    for format in ("auto", "isoscale", "gavel", "philly-log", "tiresias"):
        with pytest.raises(UserError) as caught:
            read_trace(trace, format)
        assert len(str(caught.value)) < LONGEST_MESSAGE


def test_a_value_of_any_length_makes_a_short_message() -> None:
    for value in ("x" * 10**7, 10**10**5, "\0" * 10**6):
        error = UserError(field="f", value=value, problem="p" * 10**6, remedy="r")
        assert len(str(error)) < LONGEST_MESSAGE
    assert str(UserError(field="f", value=-(10**5000), problem="p", remedy="r")) == "f=-10**5000: p; r"
