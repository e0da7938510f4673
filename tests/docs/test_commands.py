"""Every command in the documentation runs, ends as shown and prints the lines that are shown."""

from __future__ import annotations

import difflib
import json
import re
from concurrent.futures import Future

import pytest

from tests.docs.conftest import PageRun
from tests.docs.pages import ROOT, Block, all_blocks, commands

# Sessions of pages wait for one another: a test may wait for all of them, and each command has a limit of its own.
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

BLOCKS = all_blocks()
SHELL = [block for block in BLOCKS if block.language in ("console", "bash")]
PYTHON = [block for block in BLOCKS if block.directive in ("runnable", "raises")]


@pytest.mark.parametrize("block", [b for b in SHELL if b.directive != "not run"], ids=lambda block: block.label)
def test_commands_end_and_print_as_shown(block: Block, page_runs: dict[str, Future[PageRun]]) -> None:
    results = page_runs[block.page].result().commands
    shown_commands = commands(block)
    assert shown_commands, f"{block.label}: no command in a {block.language} block"
    for number, (command, shown) in enumerate(shown_commands):
        code, output = results[block.label, command]
        is_last = number == len(shown_commands) - 1
        wanted = int(block.value) if block.directive == "exit" and is_last else 0
        assert code == wanted, f"{block.label}: {command}\n{output}"
        _assert_shown(shown, output, f"{block.label}: {command}")


def test_blocks_that_are_not_run_say_why() -> None:
    skipped = [block for block in SHELL if block.directive == "not run"]
    assert all(block.value for block in skipped)
    assert len(skipped) <= 12, [block.label for block in skipped]


@pytest.mark.parametrize("block", [b for b in PYTHON if b.directive == "runnable"], ids=lambda block: block.label)
def test_python_blocks_run(block: Block, page_runs: dict[str, Future[PageRun]]) -> None:
    assert page_runs[block.page].result().python[block.label] == ""


@pytest.mark.parametrize("block", [b for b in PYTHON if b.directive == "raises"], ids=lambda block: block.label)
def test_errors_are_printed_as_shown(block: Block, page_runs: dict[str, Future[PageRun]]) -> None:
    following = next(b for b in BLOCKS if b.page == block.page and b.line > block.line)
    assert following.language == "text"
    assert page_runs[block.page].result().python[block.label] == following.text


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.directive == "diff"], ids=lambda block: block.label)
def test_diffs_are_those_of_the_files(block: Block) -> None:
    before, after = ((ROOT / name).read_text().splitlines() for name in block.value.split())
    lines = list(difflib.unified_diff(before, after, *block.value.split(), n=2, lineterm=""))
    assert block.text.splitlines() == lines, "\n".join(lines)
    page = (ROOT / block.page).read_text()
    removed = sum(line.startswith("-") and len(line) > 1 for line in lines[2:])
    added = sum(line.startswith("+") and len(line) > 1 for line in lines[2:])
    assert f"removes {removed} lines and adds {added}" in page
    assert f"{len(before)} lines" in page
    assert f"{len(after)} lines" in page


def test_events_have_the_fields_of_the_examples(page_runs: dict[str, Future[PageRun]]) -> None:
    (block,) = [block for block in BLOCKS if block.directive == "events"]
    examples = {example["event"]: set(example) for example in map(json.loads, block.text.splitlines())}
    written = [event for page in ("README.md", "docs/tutorial.md") for event in page_runs[page].result().events]
    assert {event["event"] for event in written} >= {"executor_started", "executor_joined", "step", "log", "finished"}
    for event in written:
        assert set(event) == examples[event["event"]], event


def _assert_shown(shown: list[str], output: str, where: str) -> None:
    """Shown lines come in this order; "..." stands for any. Numbers, digests and paths may be others, and whether a job
    had to wait for newcomers depends on the machine."""
    printed = [_bare(line) for line in output.splitlines()]
    at = 0
    for line in shown:
        if line == "...":
            continue
        wanted = _bare(line)
        assert wanted in printed[at:], f"{where}\nis not printed (any more): {line}\noutput:\n{output}"
        at += printed[at:].index(wanted) + 1


def _bare(line: str) -> str:
    line = re.sub(r"(?<=\s)/\S*/(?=[\w.-]+)", "", line)
    line = re.sub(r", after waiting [\d.]+ s", "", line)
    line = re.sub(r"(?<=\d) ms\b", " s", line)
    line = re.sub(r"\d+\.\d+(e-?\d+)?", "N", line)  # before digests: a float may have as many digits
    line = re.sub(r"\b[0-9a-f]{16,64}\b", "HEX", line)
    line = re.sub(r"\d+(\.\d+)?(e-?\d+)?", "N", line)
    return re.sub(r"\s+", " ", line).strip()
