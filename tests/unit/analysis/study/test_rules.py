"""Rules of the user's own, logs of failed attempts, and what both change in the tables and in the advice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isoscale.analysis.failures import CLASSES, classify
from isoscale.analysis.study.analysis import analyse, as_json
from isoscale.analysis.study.formats import open_trace, sources
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.rules import read_rules, with_logs
from isoscale.errors import UserError

RULES = """
[[class]]
name = "licence server"
origin = "infrastructure"
retries = 7
signatures = ["licen[cs]e server .{0,40} not reachable"]

[[class]]
name = "import error"
retries = 2
signatures = ["cannot find package"]
"""


def rules(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return path


def test_own_rules_come_first_and_extend_ours(tmp_path: Path) -> None:
    classes = read_rules(rules(tmp_path, RULES))
    assert len(classes) == len(CLASSES) + 1
    text = "Traceback (most recent call last):\nModuleNotFoundError\nLicense server lm1 is not reachable"
    assert classify(text).name == "import error"
    mine = classify(text, classes)
    assert (mine.name, mine.origin, mine.retries) == ("licence server", "infrastructure", 7)
    extended = classify("cannot find package x", classes)
    assert (extended.name, extended.origin, extended.retries) == ("import error", "user", 2)
    assert classify("ModuleNotFoundError", classes).retries == 2


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "--rules="),
        ("class = 3", "--rules="),
        ("[[class]]\norigin = 'user'", "--rules [[class]] 1 name="),
        ("[[class]]\nname = 'x'\norigin = 'me'\nsignatures = ['a']", "--rules [[class]] 1 origin="),
        ("[[class]]\nname = 'x'\norigin = 'user'\nretries = -1\nsignatures = ['a']", "--rules [[class]] 1 retries="),
        ("[[class]]\nname = 'x'\norigin = 'user'\nretries = true\nsignatures = ['a']", "--rules [[class]] 1 retries="),
        ("[[class]]\nname = 'x'\norigin = 'user'", "--rules [[class]] 1 signatures="),
        ("[[class]]\nname = 'x'\norigin = 'user'\nsignatures = ['(']", "--rules [[class]] 1 signatures="),
        ("[[class]]\nname = 'x'\norigin = 'user'\nsignatures = ['a']\ncolour = 1", "--rules [[class]] 1="),
        ("[[class]]\nname = 'GPU ECC error'\n" * 2, "--rules name="),
        ("[[class", "--rules="),
    ],
)
def test_mistakes_in_rules_name_the_field(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(UserError) as error:
        read_rules(rules(tmp_path, text))
    assert str(error.value).startswith(where)


def attempt(start: int, end: int, devices: int = 2) -> dict[str, object]:
    return {
        "start_time": f"2017-10-09 {start:02d}:00:00",
        "end_time": f"2017-10-09 {end:02d}:00:00",
        "detail": [{"ip": "m1", "gpus": [f"gpu{i}" for i in range(devices)]}],
    }


def test_logs_give_classes_and_hopeless_retries(tmp_path: Path) -> None:
    jobs = [
        {"jobid": "a", "status": "Failed", "attempts": [attempt(1, 2), attempt(2, 3), attempt(3, 5)]},
        {"jobid": "b", "status": "Pass", "attempts": [attempt(1, 2), attempt(2, 3)]},
        {"jobid": "c", "status": "Failed", "attempts": [attempt(1, 4)]},
        {"jobid": "d", "status": "Failed", "attempts": [attempt(1, 2, 1)]},
    ]
    log = tmp_path / "cluster_job_log"
    log.write_text(json.dumps([{**job, "vc": "v", "submitted_time": "2017-10-09 00:00:00"} for job in jobs]))
    logs = tmp_path / "logs"
    (logs / "b").mkdir(parents=True)
    (logs / "a.0.err").write_text("SyntaxError: invalid syntax")
    (logs / "a.1.err").write_text("SyntaxError: invalid syntax")
    (logs / "a.log").write_text("SyntaxError: invalid syntax")
    (logs / "b" / "0.log").write_text("uncorrectable ECC error")
    (logs / "c").write_text("CUDA out of memory")
    trace = open_trace(sources(str(log))[0], Reading())
    found = as_json(analyse(with_logs(trace, logs, CLASSES, Reading()), simulate_jobs=0))
    classes = found["failures"]["classes"]
    assert {name: one["trials"] for name, one in classes.items()} == {
        "syntax error": 3,
        "GPU ECC error": 1,
        "GPU out of memory": 1,
        "(not classified)": 1,
    }
    assert classes["syntax error"]["advice"] == "do not try again; the job's owner must act"
    assert classes["GPU ECC error"]["advice"] == "try again up to 5 times, then operators must act"
    assert classes["syntax error"]["device_s"] == 2 * 4 * 3600
    hopeless = found["advice"]["hopeless"]
    # Both retries after a syntax error; the one after an ECC error was worth it.
    assert (hopeless["retries"], hopeless["hopeless"], hopeless["device_s"]) == (3, 2, 2 * 3 * 3600)
    assert hopeless["after_class"] == {"syntax error": 2}
    assert found["advice"]["trial"]["caught_by_class"] == {}
    assert "failures.classes" not in found["missing"]
    with pytest.raises(UserError, match="--logs="):
        with_logs(trace, tmp_path / "nothing", CLASSES, Reading())
