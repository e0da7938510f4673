"""Which files a run keeps: those that its imports may find, within bounds, whatever else lies there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from isoscale.errors import UserError
from isoscale.runtime.code.collect import Bounds, code_of_script, collect
from isoscale.runtime.code.ignore import Patterns
from isoscale.runtime.code.libraries import OWN_PACKAGE
from isoscale.runtime.code.manifest import Root
from isoscale.runtime.code.roots import editable_packages, find_roots


def tree(home: Path, *names: str) -> Path:
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"NAME = {name!r}\n")
    return home


def kept(home: Path, **options: object) -> set[str]:
    """Names of files that are kept of a project whose script is train.py."""
    out = str(options.pop("out", ""))
    bounds = Bounds(**options)  # type: ignore[arg-type]
    files = collect(str(home / "train.py"), [Root(path=str(home), why="script")], out=out, bounds=bounds)
    return {os.path.relpath(path, home) for path in files}


def test_sources_and_extensions_are_kept_and_nothing_else(tmp_path: Path) -> None:
    home = tree(tmp_path, "train.py", "net/__init__.py", "net/deep/ops.py", "net/fast.so", "notes.txt", "data/x.bin")
    assert kept(home) == {"train.py", "net/__init__.py", "net/deep/ops.py", "net/fast.so"}


def test_libraries_environments_hidden_directories_and_runs_are_left_out(tmp_path: Path) -> None:
    home = tree(
        tmp_path,
        "train.py",
        ".git/hooks.py",
        ".cache/x.py",
        "node_modules/a/setup.py",
        "__pycache__/train.py",
        "env/lib/python3/site-packages/torch/__init__.py",
        "named/pyvenv.cfg",
        "named/bin/activate.py",
        "runs/old/control/job.json",
        "runs/old/saved.py",
        "runs/new/saved.py",
    )
    assert kept(home, out=home / "runs" / "new") == {"train.py"}


def test_the_ignore_file_is_obeyed_but_not_for_the_script(tmp_path: Path) -> None:
    home = tree(tmp_path, "train.py", "old/a.py", "new/old/b.py", "new/c_test.py", "new/d.py")
    (home / ".isoscaleignore").write_text("# not ours\n/old/\n*_test.py\ntrain.py\n")
    assert kept(home) == {"train.py", "new/old/b.py", "new/d.py"}


@pytest.mark.parametrize(
    ("pattern", "path", "ignored"),
    [
        ("*.py", "a/b/c.py", True),
        ("/*.py", "a/c.py", False),
        ("a/*.py", "a/c.py", True),
        ("a/*.py", "a/b/c.py", False),
        ("a/**/c.py", "a/b/b/c.py", True),
        ("a/**", "a/b", True),
        ("?.py", "ab.py", False),
        ("x[1].py", "x[1].py", True),
        ("*.py\n!c.py", "a/c.py", False),
    ],
)
def test_patterns(pattern: str, path: str, ignored: bool) -> None:
    assert Patterns.parse(pattern).ignores(path) is ignored


def test_links_pipes_and_unreadable_files_do_no_harm(tmp_path: Path) -> None:
    home = tree(tmp_path / "project", "train.py", "real/x.py")
    elsewhere = tree(tmp_path / "elsewhere", "shared/y.py")
    (home / "loop").symlink_to(home)
    (home / "alias").symlink_to(home / "real")
    (home / "shared").symlink_to(elsewhere / "shared")
    (home / "gone.py").symlink_to(home / "nowhere")
    (home / "one.py").symlink_to(elsewhere / "shared" / "y.py")
    os.mkfifo(home / "pipe.py")
    os.symlink(os.fsencode(home / "real"), os.fsencode(home) + b"/\xff")
    Path(os.fsdecode(os.fsencode(home) + b"/\xfe.py")).write_text("")
    assert kept(home) == {"train.py", "real/x.py", "shared/y.py", "one.py", "\udcfe.py"}


@pytest.mark.parametrize("bound", [{"files": 3}, {"total_bytes": 60}, {"entries": 4}])
def test_more_than_can_be_kept_is_refused_with_the_place_and_the_remedy(bound: dict[str, int], tmp_path: Path) -> None:
    home = tree(tmp_path, "train.py", "big/a.py", "big/b.py", "big/c.py", "small/d.py")
    with pytest.raises(UserError) as refused:
        kept(home, **bound)
    assert "more than" in refused.value.problem
    assert f"{home} (script)" in refused.value.problem
    assert refused.value.remedy.startswith(f"name what the script does not import in {home}/.isoscaleignore")
    (home / ".isoscaleignore").write_text("big/\n")
    assert "small/d.py" in kept(home, **{**bound, "entries": 9})


def test_a_place_that_may_be_left_out_is_if_it_holds_too_much(tmp_path: Path) -> None:
    home = tree(tmp_path / "scripts", "train.py")
    tree(tmp_path, *(f"other/m{i}.py" for i in range(30)))
    roots = [Root(path=str(home), why="script"), Root(path=str(tmp_path), why="working directory", optional=True)]
    assert len(collect(str(home / "train.py"), roots, out="", bounds=Bounds(files=100))) == 1
    needed = [*roots, Root(path=str(tmp_path / "other"), why="import path")]
    assert len(collect(str(home / "train.py"), needed, out="", bounds=Bounds(files=100))) == 31
    assert len(collect(str(home / "train.py"), roots, out="", bounds=Bounds(files=1000))) == 31


def test_data_is_not_looked_through_to_its_end(tmp_path: Path) -> None:
    home = tree(tmp_path, "train.py", *(f"data/{i}/{j}.jpg" for i in range(9) for j in range(9)), "data/9/late.py")
    assert kept(home, barren_entries=20) == {"train.py"}
    assert kept(home, barren_entries=200) == {"train.py", "data/9/late.py"}


def test_a_directory_that_everybody_writes_to_is_not_searched(tmp_path: Path) -> None:
    home = tree(tmp_path / "everybodys", "train.py", "net.py", "others/project.py")
    home.chmod(0o1777)
    assert kept(home) == {"train.py", "net.py"}


def test_a_file_that_is_too_large_is_left_out_and_the_script_never(tmp_path: Path) -> None:
    home = tree(tmp_path, "train.py", "table.py")
    (home / "table.py").write_text("x" * 100)
    assert kept(home, file_bytes=50) == {"train.py"}
    assert kept(home, file_bytes=5) == {"train.py"}


def test_a_script_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.py: cannot be kept with the run \(No such file"):
        kept(tmp_path)


# ---- roots ----


def roots(script: Path, cwd: Path, **options: object) -> dict[str, str]:
    given = {"module": False, "import_path": [], "python_path": [], "links": (), "editable": {}} | options
    found = find_roots(str(script), cwd=str(cwd), **given)  # type: ignore[arg-type]
    return {os.path.relpath(root.path, cwd): root.why for root in found}


def test_import_path_entries_below_the_working_directory_are_roots(tmp_path: Path) -> None:
    tree(tmp_path, "scripts/train.py", "src/net.py", "away/lib/x.py", "linked/y.py")
    cwd = tmp_path / "work"
    cwd.mkdir()
    (cwd / "src").mkdir()
    given = ["src", str(tmp_path / "away")]
    linked = str(tmp_path / "linked")
    path = [*given, linked, str(tmp_path / "inserted by hand")]
    found = roots(tmp_path / "scripts" / "train.py", cwd, python_path=given, import_path=path, links={linked})
    assert found == {"../scripts": "script", "src": "import path", "../linked": "editable"}


def test_the_working_directory_is_a_root_if_imports_look_there(tmp_path: Path) -> None:
    script = tree(tmp_path, "scripts/train.py") / "scripts" / "train.py"
    assert roots(script, tmp_path) == {"scripts": "script"}
    assert roots(script, tmp_path, module=True) == {"scripts": "script", ".": "working directory"}
    assert roots(script, tmp_path, python_path=["."], import_path=["."])["."] == "working directory"
    (tmp_path / "pyproject.toml").touch()
    assert roots(script, tmp_path) == {"scripts": "script", ".": "working directory"}


def test_libraries_are_no_roots_and_a_recipe_is_kept_without_its_neighbours(tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    tree(library, "x.py")
    script = tree(tmp_path, "train.py") / "train.py"
    own = os.path.dirname(OWN_PACKAGE)
    assert roots(
        script, tmp_path, import_path=(path := [str(library), os.path.dirname(os.__file__), own]), links=path
    ) == {".": "script"}
    recipe = os.path.join(OWN_PACKAGE, "recipes", "digits.py")
    assert [path for path in code_of_script(recipe).files if path.startswith(OWN_PACKAGE)] == [recipe]


def test_packages_of_setuptools_editable_finders_are_roots(tmp_path: Path) -> None:
    tree(tmp_path, "train.py", "lib/src/mylib/__init__.py")
    module = type(sys)("__editable___mylib_finder")
    module.MAPPING = {"mylib": str(tmp_path / "lib" / "src" / "mylib"), "isoscale": OWN_PACKAGE}  # type: ignore[attr-defined]
    found = editable_packages({"__editable___mylib_finder": module, "torch": sys})
    assert found == {"mylib": str(tmp_path / "lib" / "src" / "mylib")}
    assert roots(tmp_path / "train.py", tmp_path, editable=found) == {".": "script", "lib/src/mylib": "editable"}
