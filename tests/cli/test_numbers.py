"""Every number that a command line takes, fed with absurd ones: exit code 2 and a line that names the option, or taken.

Options are found in the commands themselves, so that none can be forgotten; nothing is trained or simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import json
import resource
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.models import ArgumentInfo, OptionInfo

from isoscale.cli import analyze as analyze_command
from isoscale.cli import cluster_devices as devices_command
from isoscale.cli import on_storage
from isoscale.cli import policies as policies_command
from isoscale.cli import replay as replay_command
from isoscale.cli import simulate as simulate_command
from isoscale.cli import submit as submit_command
from isoscale.cli import warm as warm_command
from isoscale.cli.app import command_line
from isoscale.cli.plan import plan
from isoscale.cluster import dashboard, server
from isoscale.errors import UserError
from isoscale.runtime.control.directory import SavedJob
from isoscale.types import JobSpec, Settings

ABSURD = ("0", "-1", str(10**9), str(10**30), "nan", "inf", "1e400", "", "\u0663", "9" * 5000, "1e-300", "x")
#: beyond what the process has when a test begins: no mistake may need as much
ROOM = 2**30

#: options of text that hold numbers: what comes before and after the number
SPELT = {
    "--devices": "cpu*{}",
    "--plan": "{}:1",
    "--batches": "{}",
    "--cluster": "T4*{}",
    "--trace": "philly:jobs={}",
    "--policy": "fifo(locality_s={})",
    "--costs": "free:start_s={}",
    "--kind-speeds": "T4={}",
    "--window": "0:{}",
    "--failures": "{}",
    "--serving": "0-{}",
    "--quotas": "a={}",
    "--retry": "{}",
    "--more": "T4*{}",
    "--batch-sizes": "{}",
    "--batch-plan": "{}:16",
    "--memory": "{}",
    "--market": "T4={}",
}
#: of `plan`, where devices have any name
SPELT_FOR = {("plan", "--devices"): "T4*{}", ("plan", "--speeds"): "T4={}"}
#: of a cluster service, where this is its directory or address
SPELT_FOR |= {(command, "--cluster"): "" for command in ("submit", "devices", "lend", "reclaim")}
#: options without a number in them, `--speeds` of `simulate` (a path) among them
WITHOUT = {
    *("--determinism", "--kinds", "--order", "--out", "--listen", "--certificate", "--key", "--ca", "--join"),
    *("--rules", "--logs", "--present", "--like", "--world", "--check"),
    *("--address", "--working-dir", "--state", "--backend", "--webhook", "--tenant", "--name", "--after", "--cluster"),
    *("--token-file", "--kind", "--script", "--host", "--objective", "--speeds", "--batch", "--format"),
    *("--storage", "--device"),
}
ARGUMENTS = {
    "run": ["SCRIPT", "--workers", "4", "--out", "OUT"],
    "verify": ["SCRIPT", "--workers", "4", "--out", "OUT"],
    "check": ["SCRIPT", "--workers", "4"],
    "profile": ["SCRIPT", "--workers", "4", "--out", "OUT"],
    "replay": ["RUN", "--step", "1"],
    "scale": ["RUN", "1"],
    "resume": ["RUN"],
    "warm": [],
    "policies": ["--check", "fifo"],
    "serve": ["--state", "OUT"],
    "dashboard": ["RUN"],
    "submit": ["SCRIPT", "--workers", "4"],
    "reclaim": ["local", "1"],
    "analyze": ["RUN", "--out", "OUT"],
    "simulate": ["--trace", "philly:jobs=3", "--cluster", "T4*4", "--policy", "fifo", "--out", "OUT"],
    "plan split": ["--workers", "4", "--devices", "T4*2", "--speeds", "T4=1"],
    "plan batch": ["PROFILE", "--devices", "cpu*2"],
    "plan grow": ["--workers", "4", "--devices", "T4*2", "--speeds", "T4=1"],
}


def commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    for prefix, group in (("", command_line()), ("plan ", plan)):
        for command in group.registered_commands:
            assert command.callback is not None
            yield prefix + (command.name or command.callback.__name__), command.callback


def options() -> Iterator[tuple[str, str, bool]]:
    """(command, option, whether it is a number) for whatever takes a value."""
    for name, callback in commands():
        hints = typing.get_type_hints(callback, include_extras=True)
        for parameter in inspect.signature(callback).parameters:
            if hints[parameter] is typer.Context:
                continue
            kind, *extras = typing.get_args(hints[parameter])
            (info,) = [one for one in extras if isinstance(one, OptionInfo | ArgumentInfo)]
            sorts = set(typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,))
            if isinstance(info, ArgumentInfo) or bool in sorts:
                continue
            declared = [text for text in info.param_decls or () if text.startswith("--")]
            yield name, declared[0] if declared else f"--{parameter.replace('_', '-')}", bool(sorts & {int, float})


CASES = [
    (command, option, SPELT_FOR.get((command.split()[0], option), "{}" if number else SPELT.get(option, "")))
    for command, option, number in options()
]


def test_no_option_is_forgotten() -> None:
    assert {command for command, _ in commands()} - set(ARGUMENTS) == {
        *("status", "checkpoint", "stop", "executor", "recipes", "report", "devices", "lend")
    }
    unknown = [(command, option) for command, option, form in CASES if not form and option not in WITHOUT]
    assert unknown == [], "say in this file whether there is a number in it"
    assert sum(number for _, _, number in options()) >= 30


class _Taken(Exception):  # noqa: N818 - no failure: the numbers were taken, and work would begin
    pass


COMMAND = typer.main.get_command(command_line())


def refusal(arguments: list[str]) -> str:
    """What is said before exit code 2; "" if the arguments are taken."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            code = COMMAND.main(arguments, prog_name="isoscale", standalone_mode=False)
    except _Taken:
        return ""
    except UserError as error:
        return str(error)
    return said.getvalue().removesuffix("\n") if code == 2 else ""


@pytest.fixture
def nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(work: Any = None, *_: Any, **__: Any) -> Any:
        if asyncio.iscoroutine(work):
            work.close()
        raise _Taken

    monkeypatch.setattr(asyncio, "run", taken)
    monkeypatch.setattr(simulate_command, "_run_all", taken)
    monkeypatch.setattr(replay_command, "start_replay", taken)
    monkeypatch.setattr(warm_command, "Keeper", taken)
    monkeypatch.setattr(analyze_command, "_read", taken)
    monkeypatch.setattr(on_storage, "JobHandle", taken)
    monkeypatch.setattr(policies_command, "check_policy", taken)
    monkeypatch.setattr(server, "serve", taken)
    monkeypatch.setattr(dashboard, "show_run", taken)
    monkeypatch.setattr(submit_command, "connect", taken)
    monkeypatch.setattr(devices_command, "connect", taken)


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text("import isoscale\n")
    run.mkdir()
    job = {"workers": 4, "script": str(script)}
    (run / "summary.json").write_text(json.dumps({"job": job}))
    (run / "events.jsonl").write_text('{"t": 0, "event": "step", "step": 1, "loss": 0.5}\n')
    (run / "control").mkdir()
    spec = JobSpec(workers=4, seed=0, script=str(script), out=str(run))
    saved = SavedJob(spec=spec, settings=Settings(), target="cpu*1", plan=[])
    (run / "control" / "job.json").write_bytes(msgspec.json.encode(saved, enc_hook=str))
    point = {"devices": {"cpu": 1}, "split": [4], "batch": 16, "step_s": 1.0, "exchange_s": 0.0, "samples_per_s": 64.0}
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"format": 1, "workers": 4, "points": [point]}))
    return {"SCRIPT": str(script), "RUN": str(run), "PROFILE": str(profile)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("command", "option", "form"), [case for case in CASES if case[2]])
def test_an_absurd_number_is_refused_by_name_or_taken(
    command: str,
    option: str,
    form: str,
    places: dict[str, str],
    tmp_path: Path,
    nothing_begins: None,
    bounded_memory: None,
) -> None:
    refused = 0
    for number, absurd in enumerate(ABSURD):
        words = [{**places, "OUT": str(tmp_path / f"out-{number}")}.get(word, word) for word in ARGUMENTS[command]]
        for given in (index for index, word in enumerate(words) if word == option):
            del words[given : given + 2]
            break
        line = refusal([*command.split(), *words, f"{option}={form.replace('{}', absurd)}"])
        refused += bool(line)
        assert not line or option in line, f"{absurd!r}: {line}"
        assert "\n" not in line
    assert refused > 3, "a bound is missing"
