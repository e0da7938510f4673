from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from isoscale.protocol.files import write_json_atomic, write_text_atomic


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
