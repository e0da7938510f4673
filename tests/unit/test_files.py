from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from isoscale.errors import UserError
from isoscale.protocol import files
from isoscale.protocol.events import read_events
from isoscale.protocol.files import write_json_atomic, write_text_atomic
from isoscale.runtime.checkpoint import files as checkpoint
from isoscale.runtime.control.directory import Control
from isoscale.runtime.control.ended import status_after
from isoscale.runtime.control.executor_link import find_coordinator
from isoscale.runtime.tools.replay import read_log
from isoscale.types import JobSpec


def test_json_comes_back(tmp_path: Path) -> None:
    write_json_atomic(tmp_path / "a.json", {"x": [1, 2.5, None], "é": True})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [1, 2.5, None], "é": True}
    assert os.listdir(tmp_path) == ["a.json"]


def test_mode_is_set_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: modes.append(stat.S_IMODE(os.fstat(fd).st_mode)))
    write_text_atomic(tmp_path / "token", "secret", mode=0o600)
    assert modes[0] == stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


@pytest.mark.parametrize("value", [float("nan"), object(), "\ud800"])
def test_a_failure_changes_nothing(tmp_path: Path, value: object) -> None:
    path = tmp_path / "a.json"
    write_json_atomic(path, 1)
    with pytest.raises((ValueError, TypeError)):
        write_text_atomic(path, value) if isinstance(value, str) else write_json_atomic(path, value)
    assert json.loads(path.read_text()) == 1
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_missing_directory_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_json_atomic(tmp_path / "none" / "a.json", 1)


def test_readers_see_whole_files_while_two_write(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    texts = {"a" * 100_000, "b" * 200_000}
    write_text_atomic(path, "a" * 100_000)

    def write(text: str) -> None:
        for _ in range(30):
            write_text_atomic(path, text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert path.read_text() in texts
    assert os.listdir(tmp_path) == ["a.json"]


# ---- reading ----


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole: takes no space


NO_FILES = {
    "pipe": _fifo,
    "loop": _loop,
    "socket": _socket,
    "huge": _huge,
    "directory": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "nothing": lambda path: None,
    "dangling": lambda path: path.symlink_to("/no/such/file"),
}


@pytest.fixture(params=NO_FILES)
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "f"
    NO_FILES[request.param](path)
    return path


@pytest.mark.timeout(20)
def test_what_is_no_small_file_is_an_error_and_waits_for_nothing(no_file: Path) -> None:
    for read in (files.read_small, files.read_small_json):
        with pytest.raises(OSError, match=re.escape(str(no_file))):
            read(no_file)


def test_small_files_are_read_through_links(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"x": 1}')
    (tmp_path / "b").symlink_to("a")
    assert files.read_small(tmp_path / "b") == b'{"x": 1}'
    assert files.read_small_json(tmp_path / "b") == {"x": 1}
    with pytest.raises(OSError, match="more than 7 bytes"):
        files.read_small(tmp_path / "a", 7)
    (tmp_path / "a").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting"):
        files.read_small_json(tmp_path / "a")


#: every file that is read from the directory of a run, by who reads it
READERS: dict[str, Callable[[Path], object]] = {
    "control/coordinator.json": lambda run: find_coordinator(run / "control"),
    "control/job.json": lambda run: _with_control(run, Control.load_job),
    "control/executors.json": lambda run: _with_control(run, Control.load_executors),
    "control/result.json": lambda run: _with_control(run, Control.result),
    "control/term": lambda run: _with_control(run, lambda control: control.term),
    "control/token": lambda run: _with_control(run, lambda control: control.token),
    "control/lock": lambda run: _with_control(run, lambda control: control.term),
    "summary.json": lambda run: (status_after(run), read_log(run)),
    "events.jsonl": lambda run: list(read_events(run / "events.jsonl")),
    "checkpoints/step-00000004.json": lambda run: checkpoint.newest(run / "checkpoints", lambda _: None),
    "checkpoints/step-00000004.pt": lambda run: checkpoint.newest(run / "checkpoints", lambda _: None),
}


def _with_control(run: Path, use: Callable[[Control], object]) -> object:
    control = Control(run)
    try:
        return use(control)
    finally:
        control.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("sort", [sort for sort in NO_FILES if sort not in ("huge", "device")])
@pytest.mark.parametrize("name", READERS)
def test_no_reader_of_a_run_waits_for_what_is_no_file(name: str, sort: str, tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    (tmp_path / "checkpoints").mkdir()
    identity = checkpoint.Identity.of(JobSpec(workers=2))
    written = checkpoint.write(tmp_path / "checkpoints", {"a": 1}, step=4, identity=identity, tag="x")
    checkpoint.publish(tmp_path / "checkpoints", written, 3)
    (tmp_path / name).unlink(missing_ok=True)
    NO_FILES[sort](tmp_path / name)
    with contextlib.suppress(UserError, OSError):
        READERS[name](tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["control/job.json", "control/result.json", "checkpoints/step-00000004.json"])
def test_no_reader_of_a_run_takes_a_terabyte_into_memory(name: str, tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    (tmp_path / "checkpoints").mkdir()
    _huge(tmp_path / name)
    with contextlib.suppress(UserError):
        READERS[name](tmp_path)
