from __future__ import annotations

from pathlib import Path

import pytest

from isoscale.cli.devices import parse_plan
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet
from isoscale.runtime.control.directory import Control, read_address, saved
from isoscale.runtime.membership.scale_request import parse_target
from isoscale.types import JobSpec, Settings

SPEC = JobSpec(workers=4, kinds=("cpu", "cpu-avx2"))


@pytest.mark.parametrize(
    ("text", "present", "expected"),
    [
        ("3", "cpu*1", "cpu*3"),
        ("+1", "cpu*2", "cpu*3"),
        ("-1", "cpu*2", "cpu*1"),
        (" 2 ", "cpu*4", "cpu*2"),
        ("+1", "cpu*1+cpu-avx2*1", "cpu*2+cpu-avx2*1"),
        ("-1", "cpu*2+cpu-avx2*1", "cpu*2"),
        ("+0", "cpu*2", "cpu*2"),
        ("cpu*1+cpu-avx2*2", "cpu*4", "cpu*1+cpu-avx2*2"),
    ],
)
def test_targets(text: str, present: str, expected: str) -> None:
    assert str(parse_target(text, DeviceSet.parse(present), SPEC)) == expected


@pytest.mark.parametrize("text", ["0", "5", "-2", "+3", "", "x", "cpu*0", "cpu-sse", "cpu*5", "1.5", "--1", "+-1"])
def test_targets_that_cannot_be(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_target(text, DeviceSet.parse("cpu*2"), SPEC)
    assert caught.value.exit_code == 2


def test_one_coordinator_at_a_time_and_each_has_a_higher_term(tmp_path: Path) -> None:
    first = Control(tmp_path)
    with pytest.raises(UserError, match="another coordinator"):
        Control(tmp_path)
    assert first.term == 1
    first.announce("ws://127.0.0.1:1")
    assert read_address(tmp_path) == ("ws://127.0.0.1:1", first.token)
    first.close()
    second = Control(tmp_path)
    assert (second.term, second.token) == (2, first.token)
    second.close()
    (tmp_path / "control" / "term").write_text("nonsense")
    third = Control(tmp_path)
    assert third.term >= 1
    third.close()


def test_a_job_is_found_again_as_it_was_saved(tmp_path: Path) -> None:
    control = Control(tmp_path)
    with pytest.raises(UserError, match="no job"):
        control.load_job()
    job = saved(SPEC, Settings(spares=2), DeviceSet.parse("cpu*2"), [(40, DeviceSet.parse("cpu*4"))])
    control.save_job(job)
    assert control.load_job() == job
    control.save_executors({3: {"pid": 7}})
    assert control.load_executors() == {3: {"pid": 7}}
    control.close()


def test_nobody_is_at_the_address_of_a_coordinator_that_ended(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the directory of a run"):
        read_address(tmp_path)
    control = Control(tmp_path)
    control.save_job(saved(SPEC, Settings(), DeviceSet.parse("cpu"), []))
    control.announce("ws://127.0.0.1:1")
    control.close()
    with pytest.raises(UserError, match="isoscale resume"):
        read_address(tmp_path)


def test_plans() -> None:
    assert parse_plan(None, 4, None) == []
    assert [(s, str(d)) for s, d in parse_plan("0:2, 40:4,80:cpu*1", 4, None)] == [
        (0, "cpu*2"),
        (40, "cpu*4"),
        (80, "cpu*1"),
    ]
    assert [s for s, _ in parse_plan("0:2,40:4", 4, 40)] == [0]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("", "STEP:EXECUTORS"),
        ("2", "STEP:EXECUTORS"),
        ("0:2,", "STEP:EXECUTORS"),
        ("a:2", "STEP:EXECUTORS"),
        ("-1:2", "STEP:EXECUTORS"),
        ("0:", "STEP:EXECUTORS"),
        ("0:0", "without executors"),
        ("0:2,0:3", "ascending"),
        ("40:2,10:3", "ascending"),
        ("0:5", "at most 4"),
        ("0:gpu*2", "unknown device kind"),
        ("0:cpu*x", "not KIND*COUNT"),
    ],
)
def test_plans_that_cannot_be(plan: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_plan(plan, 4, None)
    assert words in str(caught.value)
