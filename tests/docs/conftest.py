"""Runs every command that the documentation shows, once per session.

Each page with commands is a session of its own in an empty directory that holds a copy of examples/, with the
environment's programs on the path. Its commands run one after another, as a reader would run them; two sessions run
at a time. Then its Python blocks run there, all in one process.
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
from typing import Any

import pytest

from isoscale import env
from isoscale.protocol.events import read_events
from tests.docs.pages import ROOT, Block, all_blocks, commands
from tests.forked import Forked

_TIMEOUT_S = 250


@dataclass
class PageRun:
    """What came of one session: output and exit code by command, an error (or "") by Python block."""

    commands: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    python: dict[str, str] = field(default_factory=dict)
    #: of all runs that its commands made
    events: list[dict[str, Any]] = field(default_factory=list)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Blocks that say `long` are for `--long`."""

    def is_left_out(item: pytest.Item) -> bool:
        block = item.callspec.params.get("block") if hasattr(item, "callspec") else None
        return isinstance(block, Block) and block.directive == "long"

    if config.getoption("--long"):
        return
    config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
    items[:] = [item for item in items if not is_left_out(item)]


@pytest.fixture(scope="session")
def page_runs(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[PageRun]]]:
    found = [block for block in all_blocks() if block.directive != "long" or pytestconfig.getoption("--long")]
    with_commands = {block.page for block in found if _is_run(block)}
    sessions: dict[str, list[Block]] = {}
    for block in found:
        sessions.setdefault(block.page if block.page in with_commands else "other pages", []).append(block)
    with ThreadPoolExecutor(2) as pool:
        # The longest first, so that both threads are done at about the same time.
        futures = {
            name: pool.submit(_run_session, sessions[name], tmp_path_factory.mktemp(Path(name).stem.lower()))
            for name in sorted(sessions, key=lambda name: -sum(map(_is_run, sessions[name])))
        }
        yield {page: futures.get(page, futures["other pages"]) for page in {block.page for block in found}}


def _is_run(block: Block) -> bool:
    return block.language in ("console", "bash") and block.directive != "not run"


def _run_session(found: list[Block], directory: Path) -> PageRun:
    run = PageRun()
    environment = _environment()
    python = [block for block in found if block.directive in ("runnable", "raises")]
    shutil.copytree(ROOT / "examples", directory / "examples")
    for block in found:
        if block.directive == "file":
            (directory / block.value).write_text(block.text + "\n")
        elif _is_run(block):
            for command, _ in commands(block):
                if command == "wait":  # every command has a shell of its own, which has no children
                    _wait_for_others(directory)
                done = subprocess.run(
                    ["bash", "-c", command],
                    cwd=directory,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=_TIMEOUT_S,
                )
                run.commands[block.label, command] = done.returncode, done.stdout
    if python:
        run.python = dict(zip([block.label for block in python], _run_python(python, directory), strict=True))
    run.events = [event for path in directory.glob("runs/*/events.jsonl") for event in read_events(path)]
    return run


def _wait_for_others(directory: Path) -> None:
    """Until no process works in the session's directory."""
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline and any(_works_in(path, directory) for path in Path("/proc").glob("[0-9]*")):
        time.sleep(0.1)


def _works_in(process: Path, directory: Path) -> bool:
    try:
        return (process / "cwd").readlink() == directory
    except OSError:
        return False  # has ended, or is somebody else's


def _run_python(blocks: list[Block], directory: Path) -> list[str]:
    """In a process that is forked from one that has imported torch."""
    requests, answers, log = (directory / f".blocks-{name}" for name in ("requests", "answers", "log"))
    requests.write_text(json.dumps([{"text": block.text, "raises": block.directive == "raises"} for block in blocks]))
    program = Path(__file__).with_name("run_blocks.py")
    process = Forked(program, str(requests), str(answers), log=log, cwd=directory, environment=_environment())
    try:
        process.wait(_TIMEOUT_S)
    except TimeoutError as error:
        process.kill()
        raise AssertionError(f"blocks of {blocks[0].page} take longer than {_TIMEOUT_S} s") from error
    assert answers.exists(), process.output
    found: list[str] = json.loads(answers.read_text())
    return found


def _environment() -> dict[str, str]:
    own = {name for name in os.environ if name.startswith("ISOSCALE_")} - {env.WARM_DIRECTORY}
    kept = {name: value for name, value in os.environ.items() if name not in own}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
