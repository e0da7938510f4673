"""The catalogue: every entry has a script, names are found or corrected, missing packages are named."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from isoscale.errors import UserError
from isoscale.recipes import catalogue
from isoscale.recipes.catalogue import RECIPES, Recipe, check_installed, find, missing_packages, path_of, recipe_at
from isoscale.recipes.published import EASYSCALE

by_name = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)


def test_names_are_unique() -> None:
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES)


def test_figures_stand_beside_the_recipe_that_they_are_of() -> None:
    named = {recipe.name: recipe.paper_gpu for recipe in RECIPES if recipe.paper_gpu is not None}
    assert named.items() <= EASYSCALE.items()


@by_name
def test_a_recipe_is_a_script_that_says_how_it_is_run(recipe: Recipe) -> None:
    tree = ast.parse(path_of(recipe).read_text())
    said = rf"isoscale run (recipe:{recipe.name}|isoscale/recipes/{recipe.name}\.py) --workers"
    assert re.search(said, ast.get_docstring(tree) or "")
    last = tree.body[-1]
    assert isinstance(last, ast.If)
    assert [ast.unparse(statement) for statement in last.body] == ["isoscale.run(train)"]


@by_name
def test_a_recipe_uses_the_public_interface_only(recipe: Recipe) -> None:
    """`import isoscale` and `isoscale.recipes`, nothing else of the package."""
    for node in ast.walk(ast.parse(path_of(recipe).read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for module in modules:
            if module.partition(".")[0] == "isoscale":
                assert module == "isoscale" or module.startswith("isoscale.recipes."), module


@by_name
def test_proofs_are_short_by_options_of_the_recipe(recipe: Recipe) -> None:
    options = [word for word in recipe.proof if word.startswith("--")]
    script = path_of(recipe)
    source = "".join(path.read_text() for path in [script, *script.parent.glob("*/options.py")])
    assert options
    assert all(f'"{option}"' in source for option in options)


def test_what_is_not_there_is_named_with_what_is_near() -> None:
    assert find("resnet").family == "ResNet"
    with pytest.raises(UserError, match=r"SCRIPT=recipe:Resnt: no such recipe; did you mean recipe:resnet\? "):
        find("Resnt")
    with pytest.raises(UserError, match=r"no such recipe; `isoscale recipes` lists them all") as caught:
        find("nothing_of_the_kind")
    assert "did you mean" not in str(caught.value)


def test_missing_packages_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(
        name="x",
        family="",
        summary="",
        metric="",
        better="lower",
        baseline="",
        needs=("json", "no_such_package", "nor_this"),
    )
    assert missing_packages(recipe) == ["no_such_package", "nor_this"]
    with pytest.raises(UserError, match="recipe:x: needs no_such_package and nor_this, which are not installed; pip"):
        check_installed(recipe)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    check_installed(recipe)


def test_a_recipe_of_another_installation_is_recognised() -> None:
    assert recipe_at("somewhere/lib/isoscale/recipes/resnet.py") == find("resnet")
    assert recipe_at("somewhere/lib/isoscale/recipes/mine.py") is None
    assert recipe_at("somewhere/recipes/resnet.py") is None
    assert recipe_at("resnet.py") is None


def test_the_catalogue_imports_neither_torch_nor_recipes() -> None:
    code = f"import sys; sys.path.insert(0, {str(Path.cwd())!r}); import {catalogue.__name__}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stdout.split()
    assert not {"torch", "numpy", "isoscale.recipes.digits"} & set(loaded)
