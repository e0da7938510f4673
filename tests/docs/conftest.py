"""Runs every command that the documentation shows, once per session.

Each page is a session of its own in an empty directory that holds a copy of examples/, with the environment's
programs on the path. Commands of a page run one after another, as a reader would run them; two
pages run at a time. Then its Python blocks run there, all in one process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, all_blocks, commands

_TIMEOUT_S = 100


@dataclass
class PageRun:
    """What came of one page: output and exit code by command, an error (or "") by Python block."""

    commands: dict[tuple[int, str], tuple[int, str]] = field(default_factory=dict)
    python: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0


@pytest.fixture(scope="session")
def page_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[PageRun]]]:
    by_page: dict[str, list[Block]] = {}
    for block in all_blocks():
        by_page.setdefault(block.page, []).append(block)
    with ThreadPoolExecutor(2) as pool:
        yield {
            page: pool.submit(_run_page, found, tmp_path_factory.mktemp(Path(page).stem.lower()))
            for page, found in by_page.items()
        }


def _run_page(found: list[Block], directory: Path) -> PageRun:
    started, run = time.monotonic(), PageRun()
    environment = _environment()
    python = [block for block in found if block.directive in ("runnable", "raises")]
    runs_something = python or any(block.language in ("console", "bash") and not block.directive for block in found)
    if not runs_something:
        return run
    shutil.copytree(ROOT / "examples", directory / "examples")
    for block in found:
        if block.directive == "file":
            (directory / block.value).write_text(block.text + "\n")
        elif block.language in ("console", "bash") and block.directive != "not run":
            for command, _ in commands(block):
                done = subprocess.run(
                    ["bash", "-c", command], cwd=directory, env=environment, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_TIMEOUT_S,
                )  # fmt: skip
                run.commands[block.line, command] = done.returncode, done.stdout
    if python:
        requests = [{"text": block.text, "raises": block.directive == "raises"} for block in python]
        answers = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("run_blocks.py"))], cwd=directory, env=environment,
            input=json.dumps(requests), stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S, check=True,
        )  # fmt: skip
        run.python = dict(zip([block.line for block in python], json.loads(answers.stdout), strict=True))
    run.seconds = time.monotonic() - started
    return run


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ISOSCALE_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
