"""What people get wrong at the command line: one line that names field, value and remedy, and exit code 2."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isoscale.cli import scripts
from isoscale.cli.app import command_line
from tests.cli.in_process import refusal


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--spares", "-1"),
        ("--checkpoint-every", "-1"),
        ("--keep-checkpoints", "0"),
        ("--lost-after", "0"),
        ("--lost-after", "-3"),
        ("--lost-after", "nan"),
        ("--lost-after", "inf"),
        ("--audit-turns", "1.5"),
        ("--audit-turns", "-0.1"),
        ("--audit-turns", "nan"),
    ],
)
def test_numbers_that_mean_nothing_are_refused_before_anything_is_made(option: str, value: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert refusal("run", "recipe:digits", "--out", out, option, value).startswith(f"{option}={value}")
    assert not out.exists()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"x = 1\ndef (:\n", "line 2: invalid syntax: def (:"),
        (b"x = 1\n  y = 2\n", "line 2: unexpected indent"),
        (b"x = 1\x00", "null bytes"),
    ],
)
def test_a_script_that_python_cannot_read_is_refused_with_its_line(source: bytes, words: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(source)
    text = refusal("run", script, "--out", tmp_path / "out")
    assert text.startswith(f"SCRIPT={script}: ")
    assert words in text
    assert not (tmp_path / "out").exists()


def test_a_directory_is_no_script(tmp_path: Path) -> None:
    assert refusal("verify", tmp_path, "--workers", 2).startswith(f"SCRIPT={tmp_path}: is a directory; ")


@pytest.mark.parametrize("meant", ["digit", "Digits", "digits.py"])
def test_a_recipe_without_its_prefix_is_recognised_though_misspelt(meant: str, tmp_path: Path) -> None:
    assert refusal("run", meant).endswith("no such file; did you mean recipe:digits?")


def test_a_file_without_events_is_no_log(tmp_path: Path) -> None:
    other = tmp_path / "train.py"
    other.write_text("x = 1\n")
    assert "holds no event" in refusal("report", other)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("jobs", "--limit", "0"), "--limit=0: is too small; give 1 to 1000"),
        (("lend", "local", "0"), "COUNT=0: is too small; give 1 to 4096"),
        (("lend", "local"), "COUNT: neither a number nor devices; give COUNT, or --device"),
        (("serve", "--interval", "-1"), "--interval=-1.0: is too small; give 0, or 0.1 to 1000000000"),
    ],
)
def test_numbers_of_a_service(words: tuple[str, ...], told: str) -> None:
    assert refusal(*words) == told


ADDRESS = "; give http://HOST:PORT or https://HOST:PORT, as isoscale serve prints it, or its STATE"


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("ftp://here", f"is no address of a service{ADDRESS}"),
        ("http://", f"is no address of a service{ADDRESS}"),
        ("http://127.0.0.1:99999", f"is no address of a service (Port out of range 0-65535){ADDRESS}"),
        ("http://127.0.0.1:port", "is no address of a service (Port could not be cast"),
        ("a file", "is a file; give the STATE of isoscale serve, or its URL"),
        ("not here", "no such directory; start one: isoscale serve --state 'not here'"),
    ],
)
def test_what_is_no_service_is_refused(where: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").touch()
    assert refusal("jobs", "--cluster", where, "--token-file", "a file").startswith(f"--cluster={where}: {told}")


def test_a_service_that_is_named_by_its_url_needs_a_token() -> None:
    told = refusal("jobs", "--cluster", "http://127.0.0.1:1")
    assert told.startswith("--token-file: a service that is named by its URL needs a token; give --token-file")


def test_a_place_that_is_a_file(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    assert refusal("serve", "--state", taken) == f"--state={taken}: is a file; give a directory"
    assert refusal("run", "recipe:digits", "--out", taken) == f"--out={taken}: is a file; give another one"


def test_going_on_without_a_directory() -> None:
    assert refusal("run", "recipe:digits", "--resume").startswith("--resume: there is no run with checkpoints")


def test_addresses_that_cannot_be_bound(tmp_path: Path) -> None:
    state = ("serve", "--state", tmp_path / "state", "--devices", "cpu")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refusal(*state, "--port", port)
        assert told == f"--port={port}: cannot be bound (Address already in use); give another one, or --port 0 for any"
    told = refusal(*state, "--listen", "192.0.2.1", "--port", port)  # an address that is nobody's
    assert told.endswith(
        "--listen=192.0.2.1: cannot be bound (Cannot assign requested address); give an address of this machine"
    )


def test_rules_that_are_not_there(tmp_path: Path) -> None:
    told = refusal("analyze", tmp_path, "--rules", tmp_path / "absent.toml")
    assert "absent.toml: cannot be read (No such file or directory); " in told


def test_executor_says_which_of_its_options_is_wrong(tmp_path: Path) -> None:
    token, empty = tmp_path / "token", tmp_path / "empty"
    token.write_text("secret\n")
    empty.touch()
    nobody = ("--join", "ws://127.0.0.1:1")
    assert refusal("executor", *nobody).startswith("--token-file=none: an address needs the run's token")
    assert refusal("executor", *nobody, "--token-file", empty).startswith(f"--token-file={empty}: is empty")
    missing = refusal("executor", *nobody, "--token-file", tmp_path / "absent")
    assert "cannot be read (No such file or directory)" in missing
    assert refusal("executor", *nobody, "--token-file", token, "--kind", "gpu").startswith("--kind=gpu: unknown")
    silent = refusal("executor", *nobody, "--token-file", token)
    assert silent.startswith(
        "--join=ws://127.0.0.1:1: no coordinator answers (Connection refused); give the address in"
    )
    assert "secret" not in silent
    assert refusal("executor", "--join", "10.0.0.5:7700").startswith("--join=10.0.0.5:7700: neither an address nor")
    assert "not the directory of a run" in refusal("executor", "--join", tmp_path)


SUMMARY = {
    "exit_code": 0,
    "step": 32,
    "digest": "b3aee2730d04b488",
    "loss": 0.25,
    "seconds": 4.5,
    "stop_reason": "",
    "error": "",
    "logged": {},
    "job": {"script": "/somewhere/train.py", "workers": 4},
}


def ended(directory: Path, **changes: object) -> Path:
    (directory / "control").mkdir(parents=True)
    (directory / "control" / "job.json").write_text("{}")
    (directory / "summary.json").write_text(json.dumps({**SUMMARY, **changes}))
    return directory


def test_the_status_of_a_job_that_has_ended_says_how(tmp_path: Path) -> None:
    run = ended(tmp_path / "good")
    shown = CliRunner().invoke(command_line(), ["status", str(run)])
    assert shown.exit_code == 0
    assert " ".join(shown.output.split()) == (
        f"train.py finished step 32 loss 0.2500 took 4 s result {run / 'final.pt'} digest b3aee2730d04b488"
    )
    status = json.loads(CliRunner().invoke(command_line(), ["status", str(run), "--json"]).output)
    assert (status["state"], status["step"], status["executors"]) == ("finished", 32, [])
    bad = ended(tmp_path / "bad", exit_code=1, error="executor 0 was lost", digest="")
    assert "error  executor 0 was lost" in CliRunner().invoke(command_line(), ["status", str(bad)]).output
    stopped = ended(tmp_path / "stopped", exit_code=130, error="stopped on request", digest="")
    assert CliRunner().invoke(command_line(), ["status", str(stopped)]).output.split()[:2] == ["train.py", "stopped"]


def test_a_job_that_was_killed_has_not_ended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended(run)
    # Nobody listens there any more.
    (run / "control" / "coordinator.json").write_text(json.dumps({"url": "ws://127.0.0.1:1"}))
    (run / "control" / "token").write_text("secret")
    assert f"start another one: isoscale resume {run}" in refusal("status", run)
    (run / "control" / "coordinator.json").unlink()
    (run / "summary.json").write_text("{")
    assert f"no coordinator runs this job; start one: isoscale resume {run}" in refusal("status", run)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("loss = f()\nloss.backward()\n", "line 2 calls backward(), and nothing calls isoscale.run; put training into"),
        ("import torch.distributed as dist\ndist.init_process_group('gloo')\n", "line 2 calls init_process_group()"),
        ("from accelerate import Accelerator\na = Accelerator()\n", "line 2 makes an Accelerator"),
        ("from transformers import Trainer\nTrainer(model=None).train()\n", "line 2 makes a Trainer"),
        ("from engine import fit\nfit()\n", "engine.py:2 calls backward()"),
    ],
)
def test_a_script_that_was_not_ported_is_refused_before_anything_starts(
    source: str, words: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    (tmp_path / "engine.py").write_text("def fit():\n    loss().backward()\n")
    assert words in refusal("run", script, "--out", tmp_path / "out")
    assert words in refusal("verify", script, "--workers", 2)
    assert not (tmp_path / "out").exists()


def test_a_script_whose_helper_calls_isoscale_is_not_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from pieces.engine import fit\ndef train(job):\n    loss.backward()\nfit(train)\n")
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "engine.py").write_text("import isoscale\nfit = isoscale.run\n")
    assert scripts.existing(str(script)) == script
