"""A script that prints 300,000 lines, terminals that do not take them: training goes on, requests are answered."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale.protocol.events import read_events

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
FLOOD = Path(__file__).with_name("scripts") / "flood.py"
MANY = 300_000
PATIENCE_S = 200.0

pytestmark = [pytest.mark.processes, pytest.mark.timeout(500)]


class Run:
    def __init__(self, home: Path, stdout: int, lines: int = MANY, *, stderr: int | None = None) -> None:
        self.out, self.done, self.flooded = home / "out", home / "done", home / "flooded"
        with (home / "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                [ISOSCALE, "run", FLOOD, "--workers", "2", "--out", self.out, "--", str(lines), self.done],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=errors if stderr is None else stderr,
                env={**os.environ, "COLUMNS": "200", "TERM": "xterm"},
                start_new_session=True,
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        path = self.out / "events.jsonl"
        return [event for event in read_events(path) if event["event"] == name] if path.exists() else []

    def until(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert self.process.poll() is None, f"the run ended before: {what}"
            assert time.monotonic() < deadline, what
            time.sleep(0.05)

    def train(self, steps: int) -> None:
        before = len(self.events("step"))
        self.until(lambda: len(self.events("step")) >= before + steps, f"{steps} steps")


@contextlib.contextmanager
def running(*args: Any, **kwargs: Any) -> Iterator[Run]:
    run = Run(*args, **kwargs)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()
        if run.process.stdout is not None:
            run.process.stdout.close()
        for event in run.events("executor_started"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(event["pid"], signal.SIGKILL)


def isoscale(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ISOSCALE, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    with running(tmp_path, subprocess.PIPE) as run:
        run.until(lambda: run.events("step"), "a step")
        run.until(run.flooded.exists, "many lines")
        run.until(lambda: sum(event["lines"] for event in run.events("output_cut")), "lines that are not shown")
        # The log is written as steps are committed, and requests are answered.
        run.train(20)
        refused = isoscale("scale", str(run.out), "20000000")
        assert refused.returncode == 2
        assert refused.stderr == ("isoscale: target=20000000: 20000000 executors for 2 logical workers; give 1 .. 2\n")
        run.train(5)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(PATIENCE_S) == 130
        whole = (run.out / "logs" / "executor-0.log").read_bytes()
        assert whole.count(b"\nline ") == MANY
        assert whole.endswith(b"no more lines\nand no end of line")
        # Nobody has read a line: all but what a pipe and a queue hold were cut.
        assert sum(event["lines"] for event in run.events("output_cut")) > MANY - 100_000


def test_a_pipe_that_is_closed(tmp_path: Path) -> None:
    with running(tmp_path, subprocess.PIPE, lines=20_000) as run:
        assert run.process.stdout is not None
        assert run.process.stdout.readline() == b"training on 1 executor ...\n"
        run.process.stdout.close()  # as `| head -1` does
        run.until(run.flooded.exists, "all lines")
        run.train(10)
        run.done.touch()
        assert run.process.wait(PATIENCE_S) == 0
        assert (run.out / "final.pt").exists()
        assert run.events("finished")
        assert (tmp_path / "errors").read_bytes() == b""


def test_a_terminal_gets_what_it_can_show(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(ours, 2**16):
                shown.append(data)

    with running(tmp_path, theirs, stderr=theirs) as run:
        os.close(theirs)
        reader = threading.Thread(target=read)
        reader.start()
        run.until(run.flooded.exists, "many lines")
        run.until(lambda: b"no more lines" in b"".join(shown), "the end")
        run.train(10)
        run.done.touch()
        assert run.process.wait(PATIENCE_S) == 0
        reader.join(PATIENCE_S)
        os.close(ours)
        text = b"".join(shown).decode()
        assert text.count("\n") < 20_000
        assert "lines are in " in text
        assert "out/logs/executor-0.log" in text
        assert "the first line" in text
        assert "not a title" not in text
        assert "\ufffd\ufffd not text" in text
        assert "zzz ... (a line of 5,000,000 bytes)" in text
        # What had no end of line is shown at the end, before the result.
        assert text.index("no more lines") < text.index("and no end of line") < text.index("done (the test is done)")
        cut = sum(event["lines"] for event in run.events("output_cut"))
        # Every line of the script is shown or counted: those with numbers, and four others.
        assert cut + len(re.findall(r"line [0-9]+\r\n", text)) in range(MANY, MANY + 5)


def test_ctrl_c_ends_a_flood(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with running(tmp_path, theirs, lines=1000 * MANY) as run:
        os.close(theirs)
        log = run.out / "logs" / "executor-0.log"
        # Nobody reads the terminal: it is as stopped as by Ctrl-S.
        run.until(lambda: log.exists() and log.stat().st_size > 2**22, "the flood")
        run.train(5)
        # The first one asks for a checkpoint, which has to wait for the end of the flood.
        run.process.send_signal(signal.SIGINT)
        run.until(lambda: '"stopping"' in (run.out / "events.jsonl").read_text(), "the first Ctrl-C")
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(PATIENCE_S) == 130
        assert not run.flooded.exists()
        os.close(ours)
