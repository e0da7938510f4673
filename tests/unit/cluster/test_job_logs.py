"""`isoscale jobs logs`: one executor's log, and its successor's, whoever prints when."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isoscale.cli import job_logs
from isoscale.cluster.client import Client
from isoscale.cluster.logs import LogFile, LogPage, log_files, log_page
from isoscale.errors import UserError


@dataclass
class Printing:
    """A job whose executors print when the one who follows looks away; a client of it, too."""

    directory: Path
    #: of each time: what each executor prints then
    script: list[dict[int, str]]
    now: float = 1_000.0
    seconds: float = 10.0
    sources: list[str] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.now += self.seconds
        for executor, text in self.script.pop(0).items():
            path = self.directory / "logs" / f"executor-{executor}.log"
            path.parent.mkdir(exist_ok=True)
            with path.open("a") as file:
                file.write(text)
            os.utime(path, (self.now, self.now))

    def job(self, job: str) -> Any:
        return SimpleNamespace(state="running" if self.script else "finished")

    def logs(self, job: str) -> list[LogFile]:
        return log_files(self.directory)

    def log(self, job: str, source: str, offset: int) -> LogPage:
        self.sources.append(source)
        return log_page(self.directory, source, offset)

    def show(self, monkeypatch: pytest.MonkeyPatch, source: str | None = None, **how: bool) -> None:
        monkeypatch.setattr(job_logs.time, "sleep", self.sleep)
        job_logs.show_logs(cast(Client, self), "j1", source, **{"whole": False, "follow": True, **how})


def test_who_follows_a_job_goes_on_with_the_executor_that_has_taken_anothers_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Paused and resumed: executors 0 and 1 are gone for good, 2 and 3 print what comes next."""
    both = [{0: f"epoch {n}\n", 1: f"epoch {n}\n"} for n in range(3)]
    after = [{2: f"epoch {n}\n", 3: f"epoch {n}\n"} for n in range(3, 6)]
    Printing(tmp_path, [{}, *both, {}, *after]).show(monkeypatch)
    out, err = capsys.readouterr()
    assert out == "".join(f"epoch {n}\n" for n in range(6))
    assert err == "isoscale: executor 2 goes on\n"


def test_a_log_is_shown_from_where_its_predecessors_grew_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device is taken back: both printed until then."""
    Printing(tmp_path, [{0: "a\n", 1: "a\n"}, {0: "b\n", 1: "b\n"}, {1: "c\n"}, {}, {1: "d\n"}]).show(monkeypatch)
    assert capsys.readouterr().out == "a\nb\nc\nd\n"


def test_executors_that_print_together_are_not_shown_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Printing(tmp_path, [{0: "a\n"}, {1: "a\n"}, {1: "b\n"}, {0: "b\n"}, {0: "c\n"}, {1: "c\n"}], seconds=2.0)
    job.show(monkeypatch)
    assert set(job.sources) == {"0"}


def test_without_following_it_is_the_log_of_who_printed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Printing(tmp_path, [{0: "early\n", 1: "early\n"}, {3: "late\n", 2: "late\n"}])
    job.sleep(0)
    job.sleep(0)
    job.show(monkeypatch, follow=False)
    job.show(monkeypatch, "0", follow=False)
    assert capsys.readouterr().out == "late\nearly\n"
    with pytest.raises(UserError, match=r"--source=7: no such log; give one of coordinator, 0, 1, 2, 3"):
        job.show(monkeypatch, "7", follow=False)
    with pytest.raises(UserError, match="no such log"):
        job.show(monkeypatch, "../x")
