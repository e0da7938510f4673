"""scripts/setup: what it asks pip for at each level, in which order, and when it has nothing to do.

The environment's Python is a script that writes down how it was called; everything else is the real thing.
"""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FAKE = """#!/usr/bin/env bash
case "$*" in
-V) echo "Python {version}" ;;
"-m pip --version") ;;
*) echo "$*" >>"{log}"; case "$*" in *{fails}*) exit 1 ;; esac ;;
esac
"""


class Tree:
    def __init__(self, root: Path) -> None:
        self.root, self.log = root, root / "calls.txt"
        (root / "scripts").mkdir()
        for name in ("scripts/setup", "scripts/install.py", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, root / name)
        self.environment()

    def environment(self, fails: str = "no such word") -> None:
        folder = self.root / ".venv" / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        version = "{}.{}.{}".format(*sys.version_info[:3])
        (folder / "activate").write_text(f"VIRTUAL_ENV={self.root}/.venv\n")
        (folder / "python").write_text(FAKE.format(version=version, log=self.log, fails=f'"{fails}"'))
        (folder / "python").chmod(0o755)

    def setup(self, *options: str, code: int = 0, **variables: str) -> list[str]:
        """What the environment's Python was called with."""
        self.log.write_text("")
        done = subprocess.run(
            ["bash", str(self.root / "scripts" / "setup"), *options],
            env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        self.said = done.stdout + done.stderr
        return self.log.read_text().splitlines()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path.resolve())


def test_the_demonstration_comes_first_and_torch_before_all(tree: Tree) -> None:
    torch, isoscale, compiling = tree.setup()
    assert "--no-compile -c constraints.txt torch==2.13.0 setuptools>=77" in torch
    assert "--no-build-isolation -e .[demo]" in isoscale
    assert compiling.startswith("-c import torch")
    assert "transformers" not in compiling
    assert tree.setup() == []


def test_tests_add_to_it(tree: Tree) -> None:
    tree.setup()
    added, *compiling = tree.setup("--test")
    assert added.endswith("-c constraints.txt --no-build-isolation -e .[dev]")
    assert [any(word in line for line in compiling) for word in ("hypothesis", "ray.dashboard")] == [True, True]
    assert tree.setup() == []
    assert tree.setup("--test") == []


def test_both_at_once_and_the_smaller_afterwards(tree: Tree) -> None:
    assert tree.setup("--test")[1].endswith("-e .[demo,dev]")
    assert tree.setup() == []


def test_other_extras_have_their_own_switch(tree: Tree) -> None:
    tree.setup()
    added, _ = tree.setup("--with", "data")
    assert added.endswith("-e .[data]")
    assert tree.setup("--with", "data") == []
    added, *_ = tree.setup("--test", "--with", "data")
    assert added.endswith("-e .[dev]")


def test_a_browser_that_cannot_come_is_told_and_harms_nobody(tree: Tree) -> None:
    tree.setup("--test")
    folder = tree.root / "bin"
    folder.mkdir()
    for name in ("bash", "cat", "dirname", "env", "flock", "grep", "mv", "rm"):
        (folder / name).symlink_to(shutil.which(name) or "")
    (folder / "id").write_text("#!/bin/bash\necho 1000\n")
    (folder / "id").chmod(0o755)
    (added,) = tree.setup("--browser", PATH=str(folder))
    assert added.endswith("-e .[browser]")
    assert "no Chromium: this is not root" in tree.said
    assert "apt-get install chromium" in tree.said
    with (tree.root / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    tree.setup("--test")
    tree.environment(fails="-e .[browser]")
    tree.setup("--browser", code=1, PATH=str(folder))
    assert tree.setup("--test") == []


def test_what_is_imported_is_compiled_whatever_the_environment_says(tree: Tree) -> None:
    fake = tree.root / ".venv" / "bin" / "python"
    fake.write_text(fake.read_text().replace('*) echo "$*"', '*) echo "${PYTHONDONTWRITEBYTECODE-writes} $*"'))
    *_, compiling = tree.setup(PYTHONDONTWRITEBYTECODE="1")
    assert compiling.startswith("writes -c import torch")


def test_torch_is_compiled_here() -> None:
    """Else every process of every test compiles it anew."""
    assert torch.__cached__ is not None
    assert Path(torch.__cached__).exists(), "run: scripts/setup --test"


def test_a_changed_project_is_set_up_anew(tree: Tree) -> None:
    tree.setup("--test")
    with (tree.root / "constraints.txt").open("a") as file:
        file.write("# other\n")
    torch, isoscale, _ = tree.setup()
    assert "torch==2.13.0" in torch
    assert isoscale.endswith("-e .[demo]")


def test_a_set_up_that_failed_is_not_taken_for_one(tree: Tree) -> None:
    tree.environment(fails="-e .[demo]")
    tree.setup(code=1)
    tree.environment()
    assert len(tree.setup()) == 3


def test_mistakes_are_named(tree: Tree) -> None:
    assert tree.setup("--with", "rya", code=2) == []
    assert (
        "--with rya: pyproject.toml has no such extra; "
        "it has browser, cluster, data, demo, dev, ray, recipes, storage, transformers" in tree.said
    )
    assert tree.setup("--all", code=2) == []
    assert "unknown option --all" in tree.said


def test_nothing_that_could_be_a_path_is_given_to_pip(tree: Tree) -> None:
    """A bare word that names a directory would be installed from there."""
    for call in tree.setup("--test"):
        for word in call.partition("constraints.txt")[2].split():
            assert word.startswith(("-", ".[")) or "=" in word, word


def test_progress_names_packages_and_sizes(tmp_path: Path) -> None:
    package = runpy.run_path(str(ROOT / "scripts" / "install.py"))["package"]
    file = tmp_path / "numpy-2.4.6-cp311-cp311-any.whl"
    file.write_bytes(bytes(2_500_000))
    assert package(f"Processing {file} (from matplotlib)") == "numpy 2.4.6, 2.5 MB"
    assert package("Downloading pillow-13.0.0-cp311-any.whl (7.1 MB)") == "pillow 13.0.0, 7.1 MB"
    assert package("Using cached torch-2.13.0+cpu-cp311-any.whl (190.1 MB)") == "torch 2.13.0+cpu, 190.1 MB"
    for other in ("Collecting pillow>=9 (from matplotlib)", "Downloading pillow-13.0.0-any.whl.metadata (8.8 kB)", ""):
        assert package(other) == ""
