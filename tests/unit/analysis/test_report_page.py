"""The page: whole, alone, and safe whatever the log says."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from isoscale.analysis.report import page
from isoscale.timelines.timeline import timeline
from tests.unit.analysis.logs import Event, Writer, crowd, old, simulated, story

VOID = {"meta", "img", "br", "!doctype"}


class Reader(HTMLParser):
    """Checks that tags are closed in order, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_a_story_in_full() -> None:
    reader = read(page([timeline(story(), job="digits.py")]))
    text = " | ".join(reader.words)
    for words in ("digits.py: 1 → 3", "Rescales", "Executors", "Faults and warnings", "Checkpoints", "Audits"):
        assert words in text
    assert "killed by SIGKILL" in text
    assert "3 + 2 + 2 + 1" in text
    assert "43%" in text, "idle shares"
    assert story()[-1]["digest"] in text
    assert reader.seen.count("img") == 1 + 2, "the time line, the loss and what was logged"
    assert reader.seen.count("table") == 5


def test_the_page_needs_no_network_and_no_script() -> None:
    text = page([timeline(story())])
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)
    assert "default-src 'none'" in text


def test_what_a_log_says_is_never_markup() -> None:
    w = Writer()
    w.write("executor_started", executor="<b>0", pid=1, kind="<i>")
    w.place([0], "start")
    w.train(3)
    evil = "<script>alert(1)</script>\"'&"
    w.write("warning", message=evil)
    w.write("log", step=1, epoch=0, **{evil: 1.5})
    w.write("checkpoint", step=1, path=evil)
    w.write("audit", step=1, digest=evil)
    w.write("rescale", generation=2, reason=evil)
    w.write("executor_lost", executor=0, reason=evil)
    w.write("failed", step=1, error=evil)
    text = page([timeline(w.events, job=evil)])
    reader = read(text)
    assert "script" not in reader.seen
    assert evil in reader.words, "shown as it is"
    assert not {"b"} & set(reader.seen)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "no events yet"),
        (story(until="straggler"), "running, or ended without a word"),
        (story(), "finished"),
        (
            [*story(until="straggler"), {"t": 2e9, "event": "failed", "step": 3, "error": "Boom: line 3"}],
            "Boom: line 3",
        ),
        (old(), "finished"),
        (simulated(), "simulated, from second 0 on"),
        ([{"event": "step"}], "running"),
    ],
    ids=["empty", "running", "finished", "failed", "old", "simulated", "bare"],
)
def test_every_sort_of_log_has_a_page(events: list[Event], words: str) -> None:
    assert any(words in text for text in read(page([timeline(events)])).words)


def test_long_tables_are_cut_in_the_middle() -> None:
    w = Writer()
    for number in range(1000):
        w.write("checkpoint", step=number, path=f"c{number}")
    reader = read(page([timeline(w.events)]))
    assert "700 more" in reader.words
    assert {"c0", "c149", "c850", "c999"} <= set(reader.words)
    assert "c150" not in reader.words


def test_many_executors() -> None:
    reader = read(page([timeline(crowd(64, changes=3))]))
    assert "1 to 2 on 57 executors" in reader.words, "not 57 shares"


def test_several_jobs_are_sections() -> None:
    reader = read(page([timeline(simulated(), job="a"), timeline(simulated(), job="b")], jobs_left_out=3))
    assert reader.seen.count("section") == 3
    assert "3 more jobs in the log." in reader.words


def test_a_profile_comes_last() -> None:
    reader = read(page([timeline(simulated())], profile_png=b"png"))
    assert reader.words.index("Profile") > 0
    assert reader.seen.count("img") == 2


def test_command_and_directory_are_told() -> None:
    begun = {"t": story()[0]["t"], "event": "coordinator_started", "term": 1, "command": "isoscale run <x>.py"}
    text = " | ".join(read(page([timeline([begun, *story()], directory="/runs/a")])).words)
    assert "isoscale run <x>.py" in text
    assert "/runs/a" in text


def test_the_page_has_a_dark_and_a_narrow_form() -> None:
    text = page([timeline(story())])
    assert "@media (prefers-color-scheme: dark)" in text
    assert "@media (max-width: 700px)" in text
