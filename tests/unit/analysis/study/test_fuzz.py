"""Readers on whatever bytes: they never crash, every line is used or counted, and fast parsing is slow parsing."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.analysis.study.analysis import analyse, as_json
from isoscale.analysis.study.formats import FORMATS, open_trace, sources
from isoscale.analysis.study.readers import json_array
from isoscale.analysis.study.readers.blocks import MISSING, Block
from isoscale.analysis.study.readers.json_array import objects
from isoscale.analysis.study.reading import Reading
from isoscale.errors import UserError
from tests.unit.analysis.study.test_readers import ACME, HELIOS, PHILLY, pai

MONITOR = "time,machineId," + ",".join(f"gpu{i}_util" for i in range(8)) + ",\n"
FIELD = st.one_of(
    st.sampled_from(
        ["", "NA", "None", "0", "100", "1e3", "-1", "nan", "inf", "m1", "gpu0", '"', "\x00", "2017-10-09 07:03:00"]
    ),
    st.floats(0, 120).map(lambda x: f"{x:.3f}"),
    st.integers(-5, 200).map(str),
    st.text(max_size=6),
)
LINE = st.one_of(
    st.lists(FIELD, max_size=14).map(",".join),
    st.tuples(
        st.sampled_from(["2017-10-09 07:03:00 PDT", "2017-10-09 07:59:00", "2017-10-09 7:03", "9999-99-99 99:99:99"]),
        st.sampled_from(["m1", "m2", ""]),
        st.lists(st.one_of(st.integers(0, 100).map(str), st.just("NA"), FIELD), min_size=8, max_size=8),
    ).map(lambda parts: ",".join([parts[0], parts[1], *parts[2], ""])),
)


def read(path: Path, format: str = "auto") -> dict[str, Any] | None:
    """The analysis, or None if the file was refused in one line."""
    refused = ""
    try:
        trace = open_trace(sources(str(path))[0], Reading(), format)
        found = as_json(analyse(trace, simulate_jobs=0))
    except UserError as error:
        refused, found = str(error), None
    assert "\n" not in refused
    json.dumps(found, allow_nan=False)
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(LINE, max_size=20), st.booleans())
def test_monitors_account_for_every_line(lines: list[str], ends: bool) -> None:
    lines = [line.replace("\n", " ").replace("\r", " ") for line in lines]
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "cluster_job_log").write_text(json.dumps([PHILLY]))
        text = MONITOR + "\n".join(lines) + ("\n" if ends else "")
        (Path(home) / "cluster_gpu_util").write_bytes(text.encode(errors="surrogatepass"))
        reading = Reading()
        trace = open_trace(sources(home)[0], reading)
    account = trace.account
    # Blank lines are no lines.
    assert account.lines.get("cluster_gpu_util", 0) == sum(bool(line) for line in lines)
    used = trace.utilisation
    assert used is not None
    good = account.lines.get("cluster_gpu_util", 0) - account.num_malformed
    assert int(used.devices.counts.sum()) + used.offline == 8 * good


@pytest.mark.parametrize(
    ("name", "head", "format"),
    [
        ("cluster_log.csv", HELIOS, "helios"),
        ("trace_seren.csv", ACME, "acme"),
        ("itp.csv", "job_id,submission_time,duration,num_gpu\n", "itp"),
        ("p.csv", "timestamp,duration,num_gpus,gpu_time,cluster\n", "philly-csv"),
        ("own.csv", "name,submit_s,devices,duration_s,failures,turn_s\n", "isoscale"),
        ("g.trace", "", "gavel"),
        ("events.jsonl", "", "isoscale-simulated"),
        ("events.jsonl", "", "isoscale-run"),
        ("cluster_job_log", "[", "philly"),
    ],
)
@settings(max_examples=40, deadline=None)
@given(st.one_of(st.lists(LINE, max_size=12).map("\n".join), st.text(max_size=200), st.binary(max_size=200)))
def test_tables_and_logs_never_crash(name: str, head: str, format: str, body: str | bytes) -> None:
    data = body if isinstance(body, bytes) else body.encode(errors="surrogatepass")
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / name
        path.write_bytes(head.encode() + data)
        read(path, format)
        read(path)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 10**10), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=12,
)
EVENT = st.fixed_dictionaries(
    {
        "t": st.one_of(st.floats(0, 1e6), JSON),
        "event": st.sampled_from(
            [
                *("cluster", "job_submitted", "job_started", "job_resized", "job_finished", "job_failed", "job_left"),
                *("job_rejected", "device_failed", "device_lent", "simulation_ended"),
                *("coordinator_started", "step", "generation", "rescale", "executor_lost", "finished", "failed"),
            ]
        ),
        "job": st.one_of(st.sampled_from(["a", "b"]), JSON),
        "devices": st.one_of(st.integers(0, 8), JSON),
        "to": st.one_of(st.integers(0, 8), JSON),
        "nodes": st.one_of(st.just([["n", "gpu", 4]]), JSON),
        "error": st.one_of(st.just("ImportError"), JSON),
        "retried": st.one_of(st.booleans(), JSON),
    }
)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENT, min_size=1, max_size=15), st.sampled_from(["isoscale-simulated", "isoscale-run"]))
def test_logs_of_events_that_make_no_sense(events: list[dict[str, Any]], format: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "events.jsonl"
        path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
        read(path, format)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=6), JSON, max_size=4), max_size=6), st.integers(1, 40), st.booleans())
def test_objects_of_an_array_are_those_of_a_real_parser(values: list[Any], piece: int, spaced: bool) -> None:
    text = json.dumps(values, indent=2 if spaced else None, ensure_ascii=False)
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "a.json"
        path.write_text(text, encoding="utf-8")
        before = json_array._PIECE
        json_array._PIECE = piece
        try:
            found = list(objects(path, Reading(strict=True)))
        finally:
            json_array._PIECE = before
    assert [json.loads(one) for _, one in found] == values
    lines = text.split("\n")
    assert all(lines[line - 1].lstrip(" [,").startswith("{") for line, _ in found)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[{"a": 1}}, {"b": 2}]', [(1, "}")]),
        ('[{"a": 1},\n {"b": {', [(2, "{")]),
        ('[{"a": "x', [(1, "{")]),
    ],
)
def test_braces_that_do_not_match_are_told(tmp_path: Path, text: str, told: list[tuple[int, str]]) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    reading = Reading()
    found = [json.loads(one) for _, one in objects(path, reading)]
    assert {"a": 1} in found or "x" in text
    assert [(one.line, one.field) for one in reading.account().first] == told


NUMBER = st.one_of(
    st.integers(0, 10**11).map(str),
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)).map(lambda parts: f"{parts[0]}.{parts[1]}"),
    st.sampled_from(["NA", "", ".5", "5.", ".", "1.2.3", "1e3", "-1", "+1", " 1", "N", "NAN", "0" * 23, "9" * 23, "٣"]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(NUMBER, min_size=3, max_size=3), min_size=1, max_size=8))
def test_numbers_by_the_block_are_pythons(rows: list[list[str]]) -> None:
    block = Block("".join(",".join(row) + "\n" for row in rows).encode(), 1)
    fields, odd = block.fields(3)
    # A last field that is empty makes the comma before it a trailing one.
    kept = [row for row in rows if row[-1] and any(row)]
    assert len(fields.lines) + len(odd) >= len(kept)
    values, good = block.numbers(fields.starts, fields.ends)
    for place, line in enumerate(fields.lines.tolist()):
        texts = block.text(line).split(",")[:3]
        for column, text in enumerate(texts):
            if text in ("NA", ""):
                assert values[place, column] == MISSING
                assert good[place, column]
            elif good[place, column]:
                whole, _, decimals = text.partition(".")
                assert values[place, column] == int(whole or "0") * 1000 + int(decimals[:3].ljust(3, "0") or "0")
            else:
                plain = text.replace(".", "", 1)
                assert not (plain.isascii() and plain.isdecimal()) or len(plain) > 15


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.datetimes(datetime(1970, 1, 1), datetime(2199, 12, 31)).map(lambda t: t.strftime("%Y-%m-%d %H:%M:%S")),
            st.sampled_from(["2017-02-29 00:00:00", "2016-02-29 00:00:00 PST", "2017-10-09T07:03:00", "", "x" * 19]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_times_by_the_block_are_pythons(texts: list[str]) -> None:
    block = Block("".join(f"{text},m\n" for text in texts).encode(), 1)
    fields, _ = block.fields(2)
    values, good = block.times(fields.starts[:, 0], fields.ends[:, 0])
    for place, line in enumerate(fields.lines.tolist()):
        text = block.text(line).split(",")[0]
        try:
            wanted = datetime.strptime(text[:19], "%Y-%m-%d %H:%M:%S")
        except ValueError:
            assert not good[place]
            continue
        assert good[place]
        assert values[place] == (wanted - datetime(1970, 1, 1)) // timedelta(seconds=1)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(path for path in ("job", "task", "instance"))), st.lists(LINE, max_size=8))
def test_pai_never_crashes(table: str, lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as home:
        pai(Path(home))
        with (Path(home) / f"pai_{table}_table.csv").open("a", encoding="utf-8", errors="surrogatepass") as file:
            file.write("\n".join(lines))
        read(Path(home))


def test_every_format_is_fuzzed() -> None:
    marks: list[Callable[..., None]] = [test_tables_and_logs_never_crash]
    parameters = {value[2] for one in marks for mark in one.pytestmark for value in mark.args[1]}  # type: ignore[attr-defined]
    # The rest are job lists by the same code as `itp`, and a database (below).
    assert {"philly", "helios", "acme", "isoscale-simulated", "isoscale-run"} <= parameters
    assert set(FORMATS) - parameters <= {"pai", "jobs", "pollux", "elasticflow", "tiresias", "isoscale-service"}


@settings(max_examples=40, deadline=None)
@given(st.one_of(st.binary(max_size=400), st.binary(max_size=400).map(lambda rest: b"SQLite format 3\0" + rest)))
def test_a_database_of_anything_is_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "cluster.sqlite").write_bytes(content)
        with pytest.raises(UserError, match=r"cluster\.sqlite"):
            open_trace(sources(home)[0], Reading())
