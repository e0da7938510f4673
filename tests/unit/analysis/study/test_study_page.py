"""The page, the pictures and the comparison: everything on them, nothing that runs, no name that is markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from isoscale.analysis.figures import render
from isoscale.analysis.study.analysis import Analysis, analyse, as_json
from isoscale.analysis.study.compare import compared, comparison_table
from isoscale.analysis.study.figures import FIGURES, draw
from isoscale.analysis.study.formats import open_trace, sources
from isoscale.analysis.study.page import study_page
from isoscale.analysis.study.reading import Reading
from tests.unit.analysis.study.made_cluster import make


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Analysis]:
    found = []
    for seed in (1, 2):
        home = make(seed).write(tmp_path_factory.mktemp("made"))
        found.append(analyse(open_trace(sources(str(home))[0], Reading()), simulate_jobs=200))
    return found


def test_every_figure_is_drawn_of_a_full_trace(made: list[Analysis]) -> None:
    documents = {"one": as_json(made[0])}
    for name in FIGURES:
        figure = draw(name, documents)
        assert figure is not None, name
        assert render(figure).startswith(b"\x89PNG")


def test_pictures_of_two_traces_have_a_panel_for_each(made: list[Analysis]) -> None:
    documents = {"one": as_json(made[0]), "two": as_json(made[1])}
    for name in ("run_time", "queueing", "status", "load"):
        figure = draw(name, documents)
        assert figure is not None
        titles = " ".join(axes.get_title(loc="left") for axes in figure.axes)
        assert "one" in titles
        assert "two" in titles


def test_names_are_no_formulas(made: list[Analysis]) -> None:
    document = as_json(made[0])
    classes = document["failures"]["classes"]
    classes |= {"$\\frac{": next(iter(classes.values())), "\x07$": next(iter(classes.values()))}
    for name in FIGURES:
        figure = draw(name, {"$\\frac{": document, "$x$": document})
        assert figure is not None
        assert render(figure).startswith(b"\x89PNG")


def test_nothing_is_drawn_of_what_is_not_known() -> None:
    trace = open_trace(sources("easyscale")[0], Reading())
    documents = {"easyscale": as_json(analyse(trace, simulate_jobs=0))}
    drawn = [name for name in FIGURES if draw(name, documents) is not None]
    assert drawn == ["load", "sizes"]


def test_the_page_has_every_subject_and_runs_nothing(made: list[Analysis]) -> None:
    analysis = replace(made[0], trace=replace(made[0].trace, name='<script>alert("x")</script>'))
    document = as_json(analysis)
    page = study_page([analysis], {analysis.trace.name: document}, {"status": b"\x89PNG"})
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    for finding in analysis.findings:
        if finding.tables:
            assert f"<h2>{finding.title}</h2>" in page
            assert all(f"<h3>{table.title}</h3>" in page for table in finding.tables)
    for check in analysis.checks:
        assert check.guideline in page
    for what, why in document["missing"].items():
        assert f"<li>{what}: {why}</li>" in page.replace("&#39;", "'").replace("&gt;", ">")
    assert page.count("data:image/png") == 1
    assert "http" not in page.replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in page


def test_malformed_lines_are_on_the_page(tmp_path: Path) -> None:
    path = tmp_path / "itp.csv"
    path.write_text("job_id,submission_time,duration,num_gpu\na,0,10,1\nb,1,<b>,2\n")
    analysis = analyse(open_trace(sources(str(path))[0], Reading()), simulate_jobs=0)
    page = study_page([analysis], {"itp": as_json(analysis)}, {})
    assert "1 malformed lines were left out" in page
    assert "itp.csv:3 duration=&lt;b&gt;: is not a number" in page


def test_two_traces_are_held_side_by_side(made: list[Analysis]) -> None:
    documents = {"one": as_json(made[0]), "two": as_json(made[1])}
    both = json.loads(json.dumps(compared(documents), allow_nan=False))
    assert both["compared"] == ["one", "two"]
    run = both["differences"]["run time, mean"]
    means = [documents[name]["run_s"]["all"]["mean"] for name in ("one", "two")]
    assert run == {"one": means[0], "two": means[1], "ratio": pytest.approx(means[1] / means[0])}
    table = comparison_table(documents)
    assert table.columns == ("", "one", "two", "last over first")
    assert "mean completion time" not in [row[0] for row in table.rows]  # only simulated logs have it
    page = study_page(made, documents, {"run_time": b"\x89PNG"})
    assert "Side by side" in page
    assert len(re.findall("<h2>What to change</h2>", page)) == 2


def test_the_same_trace_gives_the_same_document(made: list[Analysis], tmp_path: Path) -> None:
    home = make(1).write(tmp_path / made[0].trace.name)
    again = as_json(analyse(open_trace(sources(str(home))[0], Reading()), simulate_jobs=200))
    assert json.dumps(again) == json.dumps(as_json(made[0]))
