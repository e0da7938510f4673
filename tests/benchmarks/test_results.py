"""What a result is about, when it is stale, and how rows survive a break."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.index import Benchmark, benchmarks
from benchmarks.lib import options, result, sources
from benchmarks.lib.processes import ROOT
from benchmarks.state import Now, State, judge


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own: a benchmark, what it imports, and what that imports and starts."""
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    for function in (sources._wants, sources._tree, sources._code):
        function.cache_clear()
    files = {
        "benchmarks/b/one.py": "from isoscale.core import step\ndef f():\n    from benchmarks.b import part\n",
        "benchmarks/b/part.py": 'STARTS = ("isoscale.runtime",)\n',
        "isoscale/core/step.py": '"""Doc."""\nimport json\nx = 1\n',
        "isoscale/runtime/deep/a.py": "y = 1\n",
        "isoscale/other.py": "z = 1\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("benchmarks/b", "isoscale", "isoscale/core", "isoscale/runtime", "isoscale/runtime/deep"):
        (tmp_path / name / "__init__.py").touch()
    return tmp_path


def changed(tree: Path, name: str, text: str) -> set[str]:
    """Packages with another hash after a file was written."""
    before = sources.digests("benchmarks.b.one")
    (tree / name).write_text(text)
    for function in (sources._wants, sources._tree, sources._code):
        function.cache_clear()
    after = sources.digests("benchmarks.b.one")
    return {one for one in {*before, *after} if before.get(one) != after.get(one)}


def test_a_benchmark_depends_on_what_it_imports_anywhere_and_on_what_that_starts(tree: Path) -> None:
    assert sources.closure("benchmarks.b.one") == {
        *("benchmarks.b", "benchmarks.b.one", "benchmarks.b.part", "isoscale", "isoscale.core", "isoscale.core.step"),
        *("isoscale.runtime", "isoscale.runtime.deep", "isoscale.runtime.deep.a"),
    }


def test_code_counts_and_prose_does_not(tree: Path) -> None:
    assert changed(tree, "isoscale/core/step.py", '"""Other words."""\nimport json\nx = 1  # why\n') == set()
    assert changed(tree, "isoscale/core/step.py", "import json\nx = 2\n") == {"isoscale.core"}
    assert changed(tree, "isoscale/runtime/deep/a.py", "y = 2\n") == {"isoscale.runtime"}
    assert changed(tree, "isoscale/other.py", "z = 2\n") == set()
    assert changed(tree, "isoscale/core/kernel.cpp", "int main;") == {"isoscale.core"}


@pytest.mark.parametrize("benchmark", benchmarks(), ids=lambda one: one.name)
def test_every_benchmark_depends_on_code_of_isoscale(benchmark: Benchmark) -> None:
    found = sources.digests(benchmark.module)
    assert any(package.startswith("isoscale") for package in found)
    if benchmark.name.startswith("elastic."):
        assert {"isoscale.runtime", "isoscale.core", "isoscale.backends"} <= set(found)


NOW = Now({"isoscale.core": "a", "benchmarks.x": "b"}, torch="2.13.0", python="3.11.7")
FRESH = {"sources": dict(NOW.sources), "torch": "2.13.0+cpu", "python": "3.11.9", "date": "2026-11-17", "seconds": 60}


def test_a_result_is_fresh_while_its_code_and_versions_stay() -> None:
    assert judge(FRESH, NOW) == State("fresh", "", "2026-11-17", 60)
    assert judge(None, NOW) == State("never measured")
    assert judge(None, NOW, 3).why == "3 rows of an unfinished run"
    assert judge(FRESH, NOW, 3).word == "fresh"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"sources": {**NOW.sources, "isoscale.core": "c"}}, "changed: isoscale.core"),
        ({"sources": {"isoscale.core": "a"}}, "changed: benchmarks.x"),
        ({"torch": "2.12.1"}, "torch was 2.12.1, is 2.13.0"),
        ({"python": "3.12.1", "sources": {}}, "Python was 3.12, is 3.11"),
    ],
)
def test_a_stale_result_says_why(more: dict[str, object], why: str) -> None:
    state = judge({**FRESH, **more}, NOW)
    assert (state.word, state.why) == ("stale", why)


def test_a_result_without_hashes_is_stale() -> None:
    assert judge({"date": "2026-11-16"}, NOW).word == "stale"


# ---- lengths and rows ----


def asked(monkeypatch: pytest.MonkeyPatch, *words: str) -> options.Options:
    monkeypatch.setattr("sys.argv", [str(ROOT / "benchmarks" / "data" / "stream.py"), *words])
    return options.options("")


def test_only_full_length_is_kept_unless_a_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert result.destination("x", asked(monkeypatch)) == result.RESULTS / "x.json"
    assert result.destination("x", asked(monkeypatch, "--quick")) is None
    assert result.destination("x", asked(monkeypatch, "--smoke")) is None
    file = tmp_path / "x.json"
    assert result.destination("x", asked(monkeypatch, "--smoke", "--out", str(file))) == file
    assert asked(monkeypatch, "--smoke").pick(smoke=1, quick=2, full=3) == 1
    assert asked(monkeypatch).pick(smoke=1, quick=2, full=3) == 3
    with pytest.raises(SystemExit):
        asked(monkeypatch, "--smoke", "--quick")


def test_rows_go_on_after_a_break_and_become_one_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    chosen = asked(monkeypatch, "--out", str(file))
    first = result.Rows("x", chosen, ("a",), pairs=(1, 2))
    first.put({"a": 1, "value": 10})
    assert not file.exists(), "half a result is none"
    again = result.Rows("x", chosen, ("a",), pairs=(1, 2))
    assert again.find(a=1) == {"a": 1, "value": 10}
    assert again.find(a=2) is None
    again.put({"a": 2, "value": 20})
    again.finish(limit=3)
    written = json.loads(file.read_text())
    assert [row["value"] for row in written["rows"]] == [10, 20]
    assert (written["limit"], written["length"]) == (3, "full")
    assert written["command"] == f"python -m benchmarks.data.stream --out {file}"
    assert written["sources"] == sources.digests("benchmarks.data.stream")
    assert list((tmp_path / ".unfinished").iterdir()) == []
    assert result.Rows("x", chosen, ("a",), pairs=(1, 2)).all() == []


def test_rows_of_other_code_or_options_are_measured_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen = asked(monkeypatch, "--out", str(tmp_path / "x.json"))
    result.Rows("x", chosen, ("a",), pairs=1).put({"a": 1})
    assert result.Rows("x", chosen, ("a",), pairs=2).all() == []
    monkeypatch.setattr(sources, "digests", lambda module: {"isoscale.core": "other"})
    assert result.Rows("x", chosen, ("a",), pairs=1).all() == []


def test_nothing_of_a_smoke_run_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(result.RESULTS.rglob("*"))
    rows = result.Rows("no such result", asked(monkeypatch, "--smoke"), ("a",))
    rows.put({"a": 1})
    rows.finish()
    assert sorted(result.RESULTS.rglob("*")) == before


def test_a_result_names_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: pytest.fail("asked for the name of the machine"))
    assert set(result.machine()) == {"torch", "python", "cpu", "processor", "cores", "memory_gb"}


# ---- the command ----


def parsed(monkeypatch: pytest.MonkeyPatch, *words: str) -> command.argparse.Namespace:
    monkeypatch.setattr("sys.argv", ["benchmarks", *words])
    return command._options()


def test_a_measurement_goes_through_what_is_put_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = parsed(monkeypatch, "--under", "nice -n 5", "--data", "traces")
    one = Benchmark("benchmarks.simulate.philly", ("--data", "DATA"), "simulate_philly", 6)
    found = command.command(one, chosen)
    assert found[:3] == ["nice", "-n", "5"]
    assert found[4:] == ["-m", "benchmarks.simulate.philly", "--data", "traces"]
    assert command.command(one, parsed(monkeypatch)) == "--data DIR"


@pytest.mark.parametrize("word", ["elastic", "elastic/gaps.py", "gaps", "elastic.gaps", "benchmarks.elastic.gaps"])
def test_a_benchmark_is_found_by_folder_module_or_result(word: str) -> None:
    one = Benchmark("benchmarks.elastic.gaps", (), "elastic_gaps", 75)
    assert command._is_asked(one, [word])
    assert not command._is_asked(one, ["steady"])


def test_benchmarks_are_measured_as_they_were_named_else_the_shortest_first() -> None:
    ones = [
        Benchmark(f"benchmarks.{name}", (), name, minutes) for name, minutes in (("a.x", 3), ("a.y", 1), ("b.z", 2))
    ]
    states = {one.name: State("never measured", "") for one in ones}

    def ordered(*only: str) -> list[str]:
        return [one.name for one in command.in_order(ones, states, list(only))]

    assert ordered() == ["a.y", "b.z", "a.x"]
    assert ordered("b", "a") == ["b.z", "a.y", "a.x"]
    assert ordered("a.x", "z", "a") == ["a.x", "b.z", "a.y"]


def test_the_list_says_state_duration_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = [
        Benchmark("benchmarks.a.one", (), "one", 30),
        Benchmark("benchmarks.a.two", ("--data", "DATA"), "two", 3),
        Benchmark("benchmarks.a.three", (), "three", 1),
    ]
    states = {
        "a.one": State("fresh", "", "2026-11-17", 61),
        "a.two": State("never measured"),
        "a.three": State("stale", "changed: isoscale.core", "2026-11-16", None),
    }
    lines = command.table(ones, states, parsed(monkeypatch)).splitlines()
    assert lines[1].split() == ["a.one", "fresh", "61", "s", "2026-11-17"]
    assert lines[2].split() == ["a.two", "never", "measured", "3", "min", "needs", "--data", "DIR"]
    assert lines[3].endswith("60 s  2026-11-16  changed: isoscale.core")
    assert lines[4] == "2 of 3 are not fresh; measuring them takes about 4 min"


@pytest.mark.parametrize(("seconds", "text"), [(0, "?"), (45, "45 s"), (600, "10 min"), (7500, "2 h 05")])
def test_durations_are_said_in_words(seconds: float, text: str) -> None:
    assert command.duration(seconds) == text
