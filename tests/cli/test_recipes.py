"""`isoscale recipes`, and `recipe:NAME` where a command takes a script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isoscale.cli import scripts
from isoscale.cli.app import command_line
from isoscale.errors import UserError
from isoscale.recipes import catalogue
from isoscale.recipes.catalogue import RECIPES, find, path_of

ISOSCALE = str(Path(sys.executable).parent / "isoscale")


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(command_line(), list(arguments), env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


def test_every_recipe_is_listed_with_its_family_metric_and_baseline() -> None:
    output = invoke("recipes")
    for recipe in RECIPES:
        for words in (f"recipe:{recipe.name}", recipe.family, recipe.metric, recipe.baseline):
            assert words in output
    assert "not installed" not in output


def test_lines_fit_a_terminal_of_80_columns() -> None:
    table = invoke("recipes").partition("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table


def test_json_has_everything_and_commands_that_can_be_run() -> None:
    found = json.loads(invoke("recipes", "--json"))
    assert found["format"] == 1
    assert [one["name"] for one in found["recipes"]] == [recipe.name for recipe in RECIPES]
    resnet = next(one for one in found["recipes"] if one["name"] == "resnet")
    assert resnet["command"] == "isoscale run recipe:resnet --workers 4 --executors 2"
    assert resnet["missing"] == []
    assert resnet["paper_gpu"]["heterogeneous"] == [2.34, 2.79, 2.01]


def test_missing_packages_are_named_once_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue.importlib.util, "find_spec", lambda name: None if name == "mlxtend" else object())
    output = invoke("recipes")
    need = ", ".join(recipe.name for recipe in RECIPES if "mlxtend" in recipe.needs)
    assert f"not installed: mlxtend, needed by {need}; pip install 'isoscale[recipes]'" in output


def test_a_recipe_is_a_path_behind_the_command_line() -> None:
    assert scripts.resolved("recipe:resnet") == str(path_of(find("resnet")))
    assert scripts.resolved("train.py") == "train.py"
    assert scripts.resolved(None) is None


@pytest.mark.parametrize("command", ["run", "verify", "check", "profile"])
def test_every_command_that_takes_a_script_takes_recipes(command: str) -> None:
    done = CliRunner().invoke(command_line(), [command, "recipe:resnett", "--workers", "2"])
    assert isinstance(done.exception, UserError)
    assert "did you mean recipe:resnet?" in str(done.exception)


def test_a_name_without_its_prefix_is_recognised() -> None:
    with pytest.raises(UserError, match=r"SCRIPT=resnet: no such file; did you mean recipe:resnet\?"):
        scripts.existing("resnet")
    with pytest.raises(UserError, match="no such file; give the path of a Python training script"):
        scripts.existing("resnet.txt")


def test_a_joining_machine_finds_the_recipe_in_its_own_installation(tmp_path: Path) -> None:
    assert scripts.script_here("elsewhere/isoscale/recipes/digits.py") == path_of(find("digits"))
    assert scripts.script_here("elsewhere/train.py") == Path("elsewhere/train.py")
    mine = tmp_path / "isoscale" / "recipes" / "digits.py"
    mine.parent.mkdir(parents=True)
    mine.touch()
    assert scripts.script_here(str(mine)) == mine


@pytest.mark.processes
@pytest.mark.slow
def test_a_recipe_agrees_with_stock_ddp(tmp_path: Path) -> None:
    out = tmp_path / "v"
    small = ["--epochs", "1", "--samples", "96", "--width", "8"]
    done = subprocess.run(
        [ISOSCALE, "verify", "recipe:resnet", "--workers", "2", "--out", str(out), "--", *small],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal: 1 executor and stock DDP with 2 processes give the same bits" in done.stdout
    assert "accuracy" in done.stdout
    assert "baseline 0.1" in done.stdout
    # What resumes the job finds the script again.
    saved = json.loads((out / "summary.json").read_text())["job"]
    assert saved["script"] == str(path_of(find("resnet")))
