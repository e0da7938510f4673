"""Kept code in real processes: whatever happens to the files, a script runs as it was, and sees what it would see."""

from __future__ import annotations

import _heapq
import json
import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from isoscale.runtime.code.collect import Bounds, Snapshot, code_of_script, collect
from isoscale.runtime.code.launch import command_of
from isoscale.runtime.code.manifest import Damaged, Kept, Manifest, Root
from isoscale.runtime.code.store import changed_since, freeze, manifest_of, set_aside
from isoscale.runtime.code.tree import Tree
from isoscale.types import JobSpec

#: prints what a main module can see of itself
LOOK = """
import json, os, sys
own = {name: str(value) for name, value in globals().items() if name in (
    "__name__", "__file__", "__package__", "__spec__", "__cached__", "__doc__")}
print(json.dumps({
    "own": own, "builtins": type(__builtins__).__name__, "loader": type(__loader__).__name__, "argv": sys.argv,
    "path": sys.path, "cwd": os.getcwd(), "orig": sys.orig_argv[1:], "modules": sorted(sys.modules)[:0],
    "is main": sys.modules["__main__"].__dict__ is globals(),
}))
"""


class Project:
    """Sources in a directory, kept once, edited later."""

    def __init__(self, home: Path, sources: Mapping[str, str], script: str = "train.py") -> None:
        self.home, self.code = home / "project", home / "run" / "code"
        self.script = self.home / script
        for name, text in sources.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        (self.home / name).parent.mkdir(parents=True, exist_ok=True)
        (self.home / name).write_text(textwrap.dedent(text))

    def keep(self, *roots: Root, packages: Mapping[str, str] | None = None, module: str = "") -> Manifest:
        all_roots = (Root(path=str(self.script.parent), why="script"), *roots)
        files = collect(str(self.script), all_roots, out="", bounds=Bounds())
        snapshot = Snapshot(
            script=str(self.script),
            module=module,
            cwd=str(self.home),
            roots=all_roots,
            files=files,
            packages=dict(packages or {}),
        )
        return freeze(self.code, snapshot)

    def run(
        self, *arguments: str, kept: bool = True, module: str = "", path: str = ""
    ) -> subprocess.CompletedProcess[str]:
        spec = JobSpec(workers=1, script=str(self.script), module=module, script_args=arguments)
        variables = {
            "ISOSCALE_CODE": str(self.code / "manifest.json"),
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPATH": path,
        }
        return subprocess.run(
            command_of(spec, kept=kept),
            env={**os.environ, **variables},
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def prints(self, *arguments: str, module: str = "", path: str = "") -> list[str]:
        done = self.run(*arguments, module=module, path=path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()


def test_edited_deleted_and_added_modules_change_nothing(tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        {
            "train.py": "import net, sub.ops, space.inner, late\nprint(net.V, sub.ops.V, space.inner.V, late.V, sub.W)",
            "net.py": "V = 1",
            "late.py": "V = 1",
            "sub/__init__.py": "from .ops import V as W",
            "sub/ops.py": "V = 1",
            "space/inner.py": "V = 1",
        },
    )
    project.keep()
    assert project.prints() == ["1 1 1 1 1"]
    for name in ("train.py", "net.py", "sub/ops.py", "space/inner.py"):
        project.write(name, "V = 2; print('edited')")
    (project.home / "late.py").unlink()
    project.write("net/__init__.py", "V = 3")
    assert project.prints() == ["1 1 1 1 1"]
    shutil.rmtree(project.home / "sub")
    (project.home / "train.py").unlink()
    assert project.prints() == ["1 1 1 1 1"]
    assert not list(project.home.rglob("__pycache__"))


def test_a_script_sees_what_python_would_show_it(tmp_path: Path) -> None:
    project = Project(tmp_path, {"sub/train.py": f'"""Doc."""\n{LOOK}'}, script="sub/train.py")
    project.keep()
    plain, kept = (json.loads(project.run("a", "-b", kept=kept).stdout) for kept in (False, True))
    assert kept == plain
    assert kept["own"]["__file__"] == str(project.script)
    assert kept["path"][0] == str(project.home / "sub")


def test_a_module_started_by_name_sees_what_python_would_show_it(tmp_path: Path) -> None:
    sources = {"pkg/__init__.py": "", "pkg/train.py": f"from . import net\nfrom pkg.net import V\n{LOOK}\nprint(V)"}
    project = Project(tmp_path, {**sources, "pkg/net.py": "V = 1"}, script="pkg/train.py")
    project.keep(Root(path=str(project.home), why="working directory"), module="pkg.train")
    done = project.run("a", kept=False, module="pkg.train")
    project.write("pkg/net.py", "V = 2")
    kept = project.prints("a", module="pkg.train")
    assert [re.sub("0x[0-9a-f]+", "", line) for line in [*kept, ""]] == re.sub("0x[0-9a-f]+", "", done.stdout).split(
        "\n"
    )
    assert kept[1] == "1"


def test_data_files_and_generated_modules_are_read_as_they_are(tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        {
            "train.py": """
                import pathlib, pkgutil, sys, importlib
                here = pathlib.Path(__file__).parent
                print((here / "data.txt").read_text(), pkgutil.get_data("sub", "data.txt").decode())
                (here / "generated.py").write_text("V = 7")
                importlib.invalidate_caches()
                import generated, ignored
                print(generated.V, ignored.V, sorted(m.name for m in pkgutil.iter_modules([str(here)])))
            """,
            "data.txt": "old",
            "sub/__init__.py": "",
            "sub/data.txt": "old",
            "ignored.py": "V = 1",
            ".isoscaleignore": "ignored.py",
        },
    )
    project.keep()
    for name in ("data.txt", "sub/data.txt"):
        project.write(name, "new")
    project.write("ignored.py", "V = 2")
    assert project.prints() == ["new new", "7 2 ['generated', 'ignored', 'sub', 'train']"]


def test_tracebacks_sources_and_warnings_show_the_lines_that_ran(tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        {
            "train.py": "import net, inspect\nprint(inspect.getsource(net.f), end='')\nnet.f()  # as it was\n",
            "net.py": "def f():\n    raise ValueError('kept')  # this line\n",
        },
    )
    project.keep()
    project.write("net.py", "# moved\n\n\ndef f():\n    raise TypeError('edited')\n")
    project.write("train.py", "# moved\n\n\n")
    done = project.run()
    assert done.returncode == 1
    assert done.stdout == "def f():\n    raise ValueError('kept')  # this line\n"
    assert "raise ValueError('kept')  # this line" in done.stderr
    assert "net.f()  # as it was" in done.stderr
    assert "launch.py" not in done.stderr
    assert done.stderr.rstrip().endswith("ValueError: kept")


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(3)", 3), ("import sys; sys.exit('no')", 1), ("", 0)])
def test_exit_codes_are_the_scripts(code: str, expected: int, tmp_path: Path) -> None:
    project = Project(tmp_path, {"train.py": code})
    project.keep()
    done = project.run()
    assert done.returncode == expected
    assert done.stderr.strip() == ("no" if "no" in code else "")


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_children_of_multiprocessing_run_kept_code(method: str, tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        {
            "train.py": f"""
                import multiprocessing, net

                class Thing:
                    V = 1

                if __name__ == "__main__":
                    process = multiprocessing.get_context("{method}").Process(target=net.show, args=(Thing(),))
                    process.start()
                    process.join()
                    raise SystemExit(process.exitcode)
            """,
            "net.py": "def show(thing):\n    import late\n    print(type(thing).V, late.V)",
            "late.py": "V = 1",
        },
    )
    project.keep()
    project.write("train.py", (project.home / "train.py").read_text().replace("V = 1", "V = 2"))
    project.write("late.py", "V = 2")
    (project.home / "net.py").unlink()
    assert project.prints() == ["1 1"]


def test_a_fork_may_import_whatever_the_threads_of_its_parent_did(tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        {
            "train.py": """
                import os
                from isoscale.runtime.code.imports import watching

                with watching()._changed._cond:
                    child = os.fork()
                    if not child:
                        import late
                        os._exit(late.V)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            """,
            "late.py": "V = 7",
        },
    )
    project.keep()
    assert project.prints() == ["7"]


def test_modules_loaded_by_hand_and_scripts_run_by_runpy_are_kept(tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        {
            "train.py": """
                import importlib, importlib.util, os, runpy, sys
                here = os.path.dirname(__file__)
                spec = importlib.util.spec_from_file_location("config", os.path.join(here, "config.py"))
                config = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(config)
                sys.path.insert(0, os.path.join(here, "sub", ".."))
                import net
                importlib.reload(net)
                print(config.V, runpy.run_path(os.path.join(here, "tool.py"))["V"], net.V, net.__file__)
            """,
            "config.py": "V = 1",
            "tool.py": "V = 1",
            "net.py": "V = 1",
            "sub/x.py": "",
        },
    )
    project.keep()
    for name in ("config.py", "tool.py", "net.py"):
        project.write(name, "V = 2")
    assert project.prints() == [f"1 1 1 {project.home}/sub/../net.py"]


def test_links_lead_to_kept_code(tmp_path: Path) -> None:
    project = Project(tmp_path, {"train.py": "import alias.net\nprint(alias.net.V)", "zreal/net.py": "V = 1"})
    (project.home / "alias").symlink_to("zreal")
    project.keep()
    project.write("zreal/net.py", "V = 2")
    assert project.prints() == ["1"]


def test_other_roots_and_editable_packages_are_kept(tmp_path: Path) -> None:
    project = Project(tmp_path, {"train.py": "import lib, mylib.ops\nprint(lib.V, mylib.ops.V)", "src/lib.py": "V = 1"})
    package = tmp_path / "elsewhere" / "mylib_source"
    package.mkdir(parents=True)
    for name in ("__init__.py", "ops.py"):
        (package / name).write_text("V = 1")
    project.keep(
        Root(path=str(project.home / "src"), why="import path"),
        Root(path=str(package), why="editable"),
        packages={"mylib": str(package)},
    )
    project.write("src/lib.py", "V = 2")
    shutil.rmtree(package)
    assert project.prints(path=str(project.home / "src")) == ["1 1"]


def test_an_extension_module_that_was_replaced_is_the_kept_one(tmp_path: Path) -> None:
    source = Path(_heapq.__file__) if hasattr(_heapq, "__file__") else None
    if source is None:
        pytest.skip("this Python has no extension module to copy")
    project = Project(
        tmp_path, {"train.py": "import sub._heapq as h\nx = [3, 1]\nh.heapify(x)\nprint(x, h.__file__)", "sub/x.py": ""}
    )
    target = project.home / "sub" / source.name
    shutil.copy(source, target)
    project.keep()
    assert project.prints() == [f"[1, 3] {target}"]
    assert not (project.code / "extensions").exists()
    target.write_bytes(b"no library")
    assert project.prints() == [f"[1, 3] {target}"]
    target.unlink()
    assert project.prints() == [f"[1, 3] {target}"]


def test_bytecode_is_kept_for_the_next_process_and_a_torn_one_is_made_again(tmp_path: Path) -> None:
    project = Project(tmp_path, {"train.py": "import net\nprint(net.V)", "net.py": "V = 1"})
    project.keep()
    assert project.prints() == ["1"]
    (stored,) = (project.code / "bytecode").iterdir()
    stored.write_bytes(stored.read_bytes()[:-3])
    assert project.prints() == ["1"]
    project.code.chmod(0o500)
    shutil.rmtree(project.code / "bytecode", ignore_errors=True)
    assert project.prints() == ["1"]


def test_without_an_archive_files_must_be_as_they_were(tmp_path: Path) -> None:
    project = Project(tmp_path, {"train.py": "import net\nprint(net.V)", "net.py": "V = 1"})
    project.code.mkdir(parents=True)

    def hand_over() -> None:
        (project.code / "manifest.json").write_text(text)

    text = manifest_of(code_of_script(str(project.script))).to_json()
    hand_over()
    assert project.prints() == ["1"]
    assert not (project.code / "manifest.json").exists()
    hand_over()
    project.write("net.py", "V = 2")
    done = project.run()
    assert done.returncode == 1
    assert "net.py: the code that the job began with was changed since this executor joined" in done.stderr


# ---- the store ----


def test_damage_is_noticed(tmp_path: Path) -> None:
    project = Project(tmp_path, {"train.py": "print(1)"})
    manifest = project.keep()
    path = project.code / "manifest.json"
    assert Manifest.read(path) == manifest
    for text in ("", "{}", "[]", path.read_text().replace("train", "other"), path.read_text()[:-20]):
        path.write_text(text)
        with pytest.raises(Damaged):
            Manifest.read(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Damaged, match="no regular file"):
        Manifest.read(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        Manifest.read(path)
    project.keep()
    archive = project.code / manifest.archive
    archive.write_bytes(archive.read_bytes().replace(b"print(1)", b"print(2)"))
    done = project.run()
    assert done.returncode == 1
    assert "the code that the job began with is damaged in DIR/code" in done.stderr


def test_the_archive_is_a_tar_of_the_files(tmp_path: Path) -> None:
    import tarfile

    project = Project(tmp_path, {"train.py": "print(1)", "a" * 150 + "/" + "b" * 150 + ".py": "V = 1"})
    Path(os.fsdecode(os.fsencode(project.home) + b"/\xfe.py")).write_text("V = 2")
    manifest = project.keep()
    with tarfile.open(project.code / manifest.archive, errors="surrogateescape") as archive:
        found = {f"/{info.name}": archive.extractfile(info).read() for info in archive}  # type: ignore[union-attr]
    assert set(found) == set(manifest.files)
    loaded = Tree.load(project.code / "manifest.json")
    assert {path: loaded.read(path) for path in manifest.files} == found


def test_what_changed_is_named_as_a_person_would(tmp_path: Path) -> None:
    project = Project(tmp_path, {"train.py": "1", "net/a.py": "1", "net/b.py": "1", "c.py": "1"})
    manifest = project.keep()
    assert changed_since(manifest) == []
    os.utime(project.home / "c.py")
    project.write("net/a.py", "2")
    project.write("train.py", "11")
    (project.home / "net" / "b.py").unlink()
    assert sorted(changed_since(manifest)) == ["net/a.py", "net/b.py (gone)", "train.py"]


def test_an_older_manifest_stays_under_another_name(tmp_path: Path) -> None:
    project = Project(tmp_path, {"train.py": "1"})
    first = project.keep()
    set_aside(project.code)
    project.write("train.py", "2")
    second = project.keep()
    set_aside(project.code)
    assert [Manifest.read(project.code / f"manifest-{n}.json") for n in (1, 2)] == [first, second]
    assert (project.code / first.archive).exists()
    assert first.digest != second.digest


def test_the_digest_is_the_same_wherever_the_code_lies(tmp_path: Path) -> None:
    sources = {"train.py": "1", "net/a.py": "1"}
    here, there = (Project(tmp_path / name, sources).keep() for name in ("here", "there"))
    assert here.digest == there.digest
    assert here.beside_script() == there.beside_script()
    assert here.files[here.script] == Kept(here.script_sha256, 1, here.files[here.script].offset)
