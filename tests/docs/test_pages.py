"""What pages say agrees with the code: help texts, links, names, the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import isoscale
from isoscale.cli.app import command_line
from isoscale.recipes.catalogue import RECIPES, Recipe
from tests.docs import api_page, tree_page
from tests.docs.help_texts import CLI_PAGE, help_text, shown_help_texts
from tests.docs.pages import PAGES, ROOT, all_blocks, headings

COMMANDS = sorted(info.name or info.callback.__name__ for info in command_line().registered_commands if info.callback)
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}
PROSE = "\n".join(TEXT[page] for page in PAGES if page.name != "CHANGELOG.md")


@pytest.mark.parametrize("command", ["isoscale", *(f"isoscale {name}" for name in COMMANDS)])
def test_help_text_is_the_one_shown(command: str) -> None:
    shown = shown_help_texts(CLI_PAGE.read_text(encoding="utf-8"))
    assert command in shown, f"docs/cli.md has no help text of {command!r}"
    assert shown[command] == help_text(command), "run: python tests/docs/help_texts.py"


@pytest.mark.parametrize("name", isoscale.__all__)
def test_public_name_is_documented(name: str) -> None:
    assert re.search(rf"\b{re.escape(name)}\b", PROSE)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_documented_in_words(command: str) -> None:
    assert f"## isoscale {command}" in TEXT[CLI_PAGE]
    assert f"isoscale {command}" in TEXT[ROOT / "README.md"]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipe_is_documented(recipe: Recipe) -> None:
    assert f"](../isoscale/recipes/{recipe.name}.py)" in TEXT[ROOT / "docs" / "recipes.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", TEXT[page], flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in headings(linked), f"{page.name}: {target}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    found, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in found:
            continue
        found.add(page)
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            linked = (page.parent / target).resolve()
            waiting += linked.glob("*.md") if linked.is_dir() else [linked] if linked.suffix == ".md" else []
    assert set(PAGES) <= found


def test_files_of_the_readme_tree_exist() -> None:
    (tree,) = [b for b in all_blocks() if b.page == "README.md" and b.text.startswith("isoscale/\n")]
    folders: list[tuple[int, Path]] = [(-1, ROOT)]
    for line in tree.text.splitlines():
        depth, name = len(line) - len(line.lstrip()), line.split()[0]
        while folders[-1][0] >= depth:
            folders.pop()
        path = folders[-1][1] / name
        assert path.is_dir() if name.endswith("/") else path.is_file(), path
        if name.endswith("/"):
            folders.append((depth, path))


def test_every_module_is_in_the_tree() -> None:
    shown = tree_page.PAGE.read_text(encoding="utf-8")
    assert shown == tree_page.page(), "run: python tests/docs/tree_page.py"


def test_pages_name_no_machine() -> None:
    for page, text in TEXT.items():
        assert not re.search(r"/home/|/root/|/work/|/tmp/", text), page


def test_the_api_page_is_up_to_date() -> None:
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.page(), "run: python tests/docs/api_page.py"


def test_everything_on_the_api_page_has_a_docstring() -> None:
    entries = [entry for _, _, section in api_page.described() for entry in section]
    silent = [name for name, thing in entries if not (thing if isinstance(thing, str) else api_page.doc(thing))]
    assert not silent, f"docstrings are missing: {silent}"


@pytest.mark.parametrize("name", api_page.public_names())
def test_every_public_name_is_on_the_api_page(name: str) -> None:
    assert re.search(rf"`isoscale\.{name}\b|^## {name}$", api_page.page(), flags=re.MULTILINE)
