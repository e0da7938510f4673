"""Code and data that change while a job trains: it goes on as it began, or says why it does not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale.testing import Nursery, RunningJob, start

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

SCRIPT = '''\
"""Steps that take longer and longer, until there is a file `hurry` in the run's directory."""

import pathlib
import sys
import time

import torch
from torch.utils.data import TensorDataset

import isoscale

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "outside"))
import shared
from models.net import SCALE, make

FACTOR = 1.0


def train(job):
    import models.late

    model = job.model(make())
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.01))
    size = int((HERE / "size.txt").read_text())
    x = torch.randn(size, 4, generator=torch.Generator().manual_seed(0))
    loader = job.loader(TensorDataset(x), batch_size=4)
    for _ in job.steps(STEPS):
        for step in loader:
            for (batch,) in step:
                loss = model(batch).square().mean() * FACTOR * SCALE * shared.SCALE * models.late.SCALE
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            if (job.out / "boom").exists():
                raise ValueError("boom")  # the line that ran
            pause(job)


def pause(job):
    deadline = time.monotonic() + 0.05 + 0.05 * max(0, job.step - 20) ** 2
    while time.monotonic() < deadline and not (job.out / "hurry").exists():
        time.sleep(0.05)


STEPS = 60
if __name__ == "__main__":
    isoscale.run(train)
'''
NET = """\
import torch

SCALE = 1.0


def make():
    return torch.nn.Linear(4, 1)
"""


class Project:
    """A script with a package beside it, a module elsewhere and a file of data."""

    def __init__(self, home: Path) -> None:
        self.home = home / "project"
        self.script = self.home / "train.py"
        for name, text in {
            "train.py": SCRIPT,
            "models/__init__.py": "",
            "models/net.py": NET,
            "models/late.py": "SCALE = 1.0\n",
            "size.txt": "64",
            "../outside/shared.py": "SCALE = 1.0\n",
        }.items():
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_text(text)

    def edit(self, name: str, old: str = "= 1.0", new: str = "= 2.0") -> None:
        path = self.home / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the job when nobody edits anything."""
    home = tmp_path_factory.mktemp("undisturbed")
    with start(Project(home).script, out=home / "run", executors=1, nursery=nursery) as job:
        job.hurry()
        assert job.wait() == 0, job.output()
        return job.digest()


@pytest.fixture
def begin(nursery: Nursery, tmp_path: Path, project: Project) -> Iterator[Callable[..., RunningJob]]:
    jobs: list[RunningJob] = []

    def begin(**options: Any) -> RunningJob:
        given = {"out": tmp_path / "run", "nursery": nursery, "executors": 1, "cwd": project.home} | options
        jobs.append(start(given.pop("script", project.script), **given))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


Begin = Callable[..., RunningJob]


def done(job: RunningJob) -> str:
    job.hurry()
    assert job.wait() == 0, job.output()
    return job.digest()


def isoscale(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from isoscale.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


# ---- the code ----


def test_edited_files_change_nothing_for_newcomers_replacements_and_a_resumed_job(
    begin: Begin, project: Project, undisturbed: str
) -> None:
    job = begin(checkpoint_every=2)
    job.wait_step(3)
    project.edit("train.py")
    project.edit("models/net.py")
    (project.home / "models" / "late.py").unlink()
    changed = "changed since the run began: the frozen code runs"
    names = "models/late.py (gone), models/net.py, train.py"
    job.scale(2)
    job.wait_members(2)
    assert job.kill(job.members()[1])
    job.wait_for(lambda: job.events("executor_lost") and len(job.members()) == 2, "a replacement")
    assert f"warning: {names} {changed}; isoscale stop, then isoscale resume --new-code takes the edited files" in (
        job.output()
    )
    job.kill_all()
    job.resume()
    assert done(job) == undisturbed
    assert f"{names} {changed}; isoscale resume {job.directory} --new-code takes the edited files" in job.output()
    (code,) = job.events("code")
    assert (code["files"], job.events("code_changed")) == (4, [])
    replayed = isoscale("replay", job.directory, "--step", "5", cwd=project.home)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert f"warning: {names} {changed}" in replayed.stdout
    assert "equal: " in replayed.stdout


def test_new_code_is_taken_on_request_only_and_recorded(begin: Begin, project: Project, undisturbed: str) -> None:
    job = begin(checkpoint_every=2)
    job.wait_step(5)
    job.kill_coordinator()
    project.edit("models/net.py")
    job.resume("--new-code")
    assert job.wait() == 2
    assert f"--new-code={job.directory}: executor 0 of the job is alive and runs the old code; end the job first" in (
        job.output()
    )
    job.kill_all()
    job.resume("--new-code")
    assert done(job) != undisturbed
    assert job.events("code_changed")[0]["files"] == ["models/net.py"]
    assert len({one["digest"] for one in job.events("code")}) == 2
    assert "the job goes on with other code than it began with: models/net.py changed" in job.output()
    assert (job.directory / "code" / "manifest-1.json").exists()


def test_a_job_that_is_run_again_with_resume_keeps_its_code_too(
    begin: Begin, project: Project, undisturbed: str, tmp_path: Path
) -> None:
    job = begin(checkpoint_every=2)
    job.wait_step(5)
    job.kill_all()
    project.edit("train.py")
    moved = tmp_path / "elsewhere" / "project"
    shutil.copytree(project.home, moved)
    again = begin(script=moved / "train.py", resume=True, cwd=moved)
    assert again.wait() == 2
    assert f"the run in {job.directory} began with {project.script}, and train.py differs" in again.output()
    again = begin(resume=True)
    assert done(again) == undisturbed
    assert "train.py changed since the run began: the frozen code runs" in again.output()


def test_a_run_that_has_kept_no_code_goes_on_with_a_warning(begin: Begin, undisturbed: str) -> None:
    job = begin(checkpoint_every=2)
    job.wait_step(5)
    job.kill_all()
    shutil.rmtree(job.directory / "code")
    job.resume()
    assert done(job) == undisturbed
    assert "has kept no code: the job goes on with" in job.output()


def test_kept_code_that_is_damaged_is_not_run(begin: Begin, undisturbed: str) -> None:
    job = begin(checkpoint_every=2)
    job.wait_step(5)
    job.kill_all()
    manifest = job.directory / "code" / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:100])
    job.resume()
    assert job.wait() == 2
    assert "the code that the run has kept cannot be used: the manifest is damaged" in job.output()
    manifest.write_bytes(whole)
    job.resume()
    assert done(job) == undisturbed


def test_the_line_that_ran_is_shown_not_the_one_that_stands_there_now(begin: Begin, project: Project) -> None:
    job = begin()
    job.wait_step(2)
    project.edit("train.py", '"""Steps', '"""Edited.\n\n\n\nSteps')
    (job.directory / "boom").touch()
    assert job.wait() == 1
    assert 'raise ValueError("boom")  # the line that ran' in job.output()


def test_a_module_by_name(begin: Begin, project: Project, undisturbed: str) -> None:
    (project.home / "app").mkdir()
    (project.home / "app" / "__init__.py").touch()
    relative = SCRIPT.replace("from models.net", "from .nets").replace("HERE = pathlib.Path(__file__).parent\n", "")
    relative = relative.replace("import pathlib\n", "import pathlib\n\nHERE = pathlib.Path(__file__).parent.parent\n")
    (project.home / "app" / "train.py").write_text(relative)
    shutil.copy(project.home / "models" / "net.py", project.home / "app" / "nets.py")
    job = begin(script="app.train", options=["-m"])
    job.wait_step(2)
    for name in ("app/train.py", "app/nets.py", "models/late.py"):
        project.edit(name)
    job.scale(2)
    job.wait_members(2)
    assert done(job) == undisturbed
    assert (Path(json.loads((job.directory / "summary.json").read_text())["job"]["script"])).name == "train.py"


def test_loader_processes_that_are_spawned_run_frozen_code(begin: Begin, project: Project) -> None:
    (project.home / "models" / "data.py").write_text(
        "import torch\nSCALE = 1.0\n\n\nclass Data(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return 64\n\n"
        "    def __getitem__(self, index):\n        return (torch.full((4,), SCALE * index / 64),)\n"
    )
    text = SCRIPT.replace("TensorDataset(x), batch_size=4", "Data(), batch_size=4, num_workers=1")
    text = text.replace("import shared\n", "import shared\nfrom models.data import Data\n").replace(
        "STEPS = 60", "STEPS = 6"
    )
    project.script.write_text(
        text.replace("    isoscale.run", "    torch.multiprocessing.set_start_method('spawn')\n    isoscale.run")
    )
    expected = done(begin(out=project.home / "calm"))
    job = begin()
    job.wait_step(1)
    project.edit("models/data.py")
    assert job.kill(0)  # its replacement begins anew, and so do its loader processes
    assert done(job) == expected


def test_verify_compares_the_same_code_on_both_sides(project: Project) -> None:
    ending = "\n    if job.is_main:\n        path = HERE / 'models' / 'net.py'\n"
    ending += "        path.write_text(path.read_text().replace('SCALE = 1.0', 'SCALE = 2.0'))\n\n\ndef pause"
    project.script.write_text(SCRIPT.replace("\n\ndef pause", ending).replace("            pause(job)\n", ""))
    command = ["verify", "train.py", "--workers", "2", "--until", "4", "--out", "../verified"]
    verified = isoscale(*command, cwd=project.home)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "SCALE = 2.0" in (project.home / "models" / "net.py").read_text()


# ---- what is compared ----


def test_a_newcomer_with_another_module_from_elsewhere_is_refused(
    begin: Begin, project: Project, undisturbed: str
) -> None:
    job = begin()
    job.wait_step(2)
    shared = project.home.parent / "outside" / "shared.py"
    project.edit("../outside/shared.py")
    job.scale(2)
    words = f"runs other code, or reads other data, than the job began with: module shared ({shared})"
    job.wait_for(lambda: any(words in one["message"] for one in job.events("warning")), "a refusal")
    with job.handle() as handle:
        assert words in handle.status()["refused"]
    assert done(job) == undisturbed
    assert len(job.members()) == 1


def test_a_newcomer_with_other_data_is_refused_and_so_is_a_resumed_job(
    begin: Begin, project: Project, undisturbed: str
) -> None:
    job = begin(checkpoint_every=2)
    job.wait_step(4)
    project.edit("size.txt", "64", "80")
    job.scale(2)
    words = "loader 1 has 80 samples, the job's has 64 samples"
    job.wait_for(lambda: any(words in one["message"] for one in job.events("warning")), "a refusal")
    job.wait_step(job.step() + 3)
    job.kill_all()
    job.resume()
    assert job.wait() == 2
    assert f"runs other code, or reads other data, than the job began with: {words}" in job.output().splitlines()[-2]
    assert f"isoscale resume {job.directory} --new-code" in job.output()
    project.edit("size.txt", "80", "64")
    job.resume()
    assert done(job) == undisturbed


def test_a_member_that_imports_something_else_later_ends_the_job(begin: Begin, project: Project) -> None:
    """Two executors generate a module of their own, and not the same one."""
    generating = (
        "            if job.step == 4:\n"
        "                (HERE.parent / f'made-{os.getpid()}').mkdir()\n"
        "                (HERE.parent / f'made-{os.getpid()}' / 'made.py').write_text(f'X = {os.getpid()}')\n"
        "                sys.path.append(str(HERE.parent / f'made-{os.getpid()}'))\n"
        "                import made\n"
    )
    text = SCRIPT.replace("            optimizer.zero_grad()\n", f"            optimizer.zero_grad()\n{generating}")
    project.script.write_text(text.replace("import pathlib\n", "import os\nimport pathlib\n", 1))
    job = begin(executors=2)
    assert job.wait() == 2
    assert "runs other code, or reads other data, than the job began with: module made (" in job.output()


def test_who_joins_from_elsewhere_must_bring_the_same_code(
    begin: Begin, project: Project, undisturbed: str, tmp_path: Path
) -> None:
    job = begin()
    job.wait_step(1)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(project.home, elsewhere / "project")
    shutil.copytree(project.home.parent / "outside", elsewhere / "outside")
    net = elsewhere / "project" / "models" / "net.py"
    whole = net.read_text()
    net.write_text(whole.replace("1.0", "2.0"))
    (elsewhere / "project" / "models" / "late.py").unlink()
    command = ["executor", "--join", str(job.directory), "--script", str(elsewhere / "project" / "train.py")]
    refused = isoscale(*command, cwd=elsewhere)
    assert refused.returncode == 2
    assert refused.stderr.startswith(
        f"isoscale: --script={elsewhere}/project/train.py: not the code that the job began"
    )
    assert "models/late.py is missing; models/net.py differs; give this machine the job's files" in refused.stderr
    net.write_text(whole)
    shutil.copy(project.home / "models" / "late.py", net.parent)
    # The job's own files may change; who joins brings them as they were.
    project.edit("train.py")
    whole_command = [sys.executable, "-c", "from isoscale.cli import main; main()", *command]
    with (tmp_path / "joining.log").open("wb") as log:
        joining = subprocess.Popen(whole_command, cwd=elsewhere, stdout=log, stderr=log)
    try:
        job.wait_for(lambda: joining.pid in job.pids().values(), "it joins")
        job.scale(2)
        job.wait_members(2)
        assert done(job) == undisturbed
        assert joining.wait(60) == 0
    finally:
        joining.kill()
        joining.wait()


def test_import_path_entries_are_frozen(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: str
) -> None:
    """With processes that start cold, as a person starts them."""
    (project.home / "src").mkdir()
    shutil.move(project.home / "models", project.home / "src" / "models")
    monkeypatch.setenv("PYTHONPATH", "src")
    with start(project.script, out=tmp_path / "run", executors=1, cwd=project.home) as job:
        job.wait_step(2)
        project.edit("src/models/net.py")
        shutil.rmtree(project.home / "src" / "models")
        os.mkdir(project.home / "src" / "models")
        job.scale(2)
        job.wait_members(2)
        assert done(job) == undisturbed


def test_too_much_code_is_refused_and_leaves_nothing_behind(project: Project, tmp_path: Path) -> None:
    big = project.home / "big"
    big.mkdir()
    for i in range(10_001):
        (big / f"m{i}.py").touch()
    refused = isoscale("run", "train.py", "--out", "../refused", cwd=project.home)
    assert refused.returncode == 2
    assert (
        f"SCRIPT={project.script}: a run keeps its code, and {project.home} (script) holds more than 10,000 files of"
        in (refused.stderr)
    )
    assert f"name what the script does not import in {project.home}/.isoscaleignore, such as big/" in refused.stderr
    assert not (tmp_path / "refused").exists()
