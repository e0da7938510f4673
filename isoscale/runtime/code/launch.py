"""Runs a script with the code that its run has kept, as `python SCRIPT` or `python -m MODULE` would run it.

    python .../launch.py SCRIPT|-m MODULE [ARGUMENTS]        ISOSCALE_CODE names the manifest

Started by its path and not by `-m`: so nothing of the working directory is on the import path before kept code is
served. Everything that a script can ask for (`__main__`, `sys.argv`, `sys.path`) is as Python makes it for the script.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the directory of this file: its names are not for scripts

import builtins
import os
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isoscale.backends.seam import Launch
    from isoscale.types import JobSpec

__all__ = ["LAUNCHER", "command_of", "launch_of", "main", "run"]

#: this file
LAUNCHER = os.path.abspath(__file__)
#: `main`, for a process that is there already
_ENTRY = "isoscale.runtime.code.launch:main"


def command_of(spec: JobSpec, *, kept: bool, script: str = "") -> list[str]:
    """What starts a job's script, or where it lies elsewhere, `script`; `kept` if the environment names a manifest."""
    what = ["-m", spec.module] if spec.module else [script or spec.script]
    return [sys.executable, *([LAUNCHER] if kept else []), *what, *spec.script_args]


def launch_of(
    spec: JobSpec, environment: Mapping[str, str], log: Path, *, kept: bool, newcomer: bool = False
) -> Launch:
    """As `command_of`, for a backend. Without kept code only a fresh process can run it."""
    from isoscale.backends.seam import Launch

    command = command_of(spec, kept=kept)
    return Launch(
        command=tuple(command),
        entry=_ENTRY if kept else "",
        arguments=tuple(command[2:]) if kept else (),
        environment=environment,
        log=log,
        newcomer=newcomer,
    )


def main(arguments: list[str]) -> NoReturn:
    """With the kept code that the environment names."""
    from isoscale import env
    from isoscale.runtime.code.manifest import Damaged
    from isoscale.runtime.code.tree import Tree

    path = env.code()
    if path is None:
        sys.exit("isoscale: ISOSCALE_CODE is not set")
    try:
        path = _on_this_machine(path)
        tree = Tree.load(path)
    except (OSError, Damaged) as error:
        sys.exit(f"isoscale: {path}: the run's code cannot be used ({error})")
    if tree.directory is None:
        path.unlink(missing_ok=True)  # was written for this process
    module = arguments[1] if arguments[0] == "-m" else ""
    run(tree, arguments[0] if not module else tree.manifest.script, module, arguments[2 if module else 1 :])


def _on_this_machine(path: Path) -> Path:
    """The same, or where the run's storage has brought its code. Raises OSError and Damaged."""
    from isoscale import env
    from isoscale.runtime.code.manifest import Damaged, Manifest

    url, digest = env.storage(), env.code_digest()
    if url is None or not digest:
        return path
    try:
        if Manifest.read(path).digest == digest:
            return path
    except (OSError, Damaged):
        pass
    from isoscale.runtime.code.fetching import fetch_code
    from isoscale.runtime.storage.courier import CourierStorage
    from isoscale.runtime.storage.private import run_directory

    courier = CourierStorage(url)
    try:
        return fetch_code(courier, digest, run_directory(url))
    finally:
        courier.close()


def run(tree: Any, script: str, module: str, arguments: list[str]) -> NoReturn:
    """Ends the process as Python does after a script. `sys.path` must not have an entry for a script yet."""
    from isoscale.runtime.code import hook, imports, script_end

    script_end.launched()
    hook.install(tree)
    imports.watch(tree)
    sys.argv[:] = [script, *arguments]
    sys.orig_argv[:] = [sys.executable, *(["-m", module] if module else [script]), *arguments]
    if not sys.flags.safe_path:
        sys.path.insert(0, tree.manifest.cwd if module else os.path.dirname(script))
    main_module = ModuleType("__main__")
    main_module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main_module
    try:
        code = _prepare_module(main_module, module) if module else _prepare_script(main_module, tree, script)
        exec(code, main_module.__dict__)
    except (SystemExit, KeyboardInterrupt) as error:
        script_end.script_ended(error)
        raise
    except BaseException as error:
        _show(error)
        script_end.script_ended(error)
        sys.exit(1)
    script_end.script_ended(None)
    sys.exit(0)


def _prepare_script(module: ModuleType, tree: Any, script: str) -> CodeType:
    from isoscale.runtime.code.hook import code_of_file

    found = tree.find(script)
    if found is None:
        sys.exit(f"isoscale: {script} is not what the job began with ({tree.manifest.script})")
    module.__dict__.update(
        __loader__=SourceFileLoader("__main__", script), __file__=script, __cached__=None, __annotations__={}
    )
    return code_of_file(tree, found, script)


def _prepare_module(module: ModuleType, name: str) -> CodeType:
    """As `runpy` does for `python -m`: parent packages are imported first."""
    import runpy

    details: tuple[str, ModuleSpec, CodeType] = runpy._get_module_details(name)  # type: ignore[attr-defined]
    _, spec, code = details
    sys.argv[0] = str(spec.origin)
    module.__dict__.update(
        __loader__=spec.loader, __file__=spec.origin, __cached__=spec.cached, __package__=spec.parent, __spec__=spec
    )
    return code


def _show(error: BaseException) -> None:
    """The traceback, from the script's first line on. By `traceback`, which shows the lines that ran."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == LAUNCHER:
        trace = trace.tb_next
    sys.stdout.flush()
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, trace)
        return
    import traceback

    traceback.print_exception(type(error), error, trace)


if __name__ == "__main__":
    try:
        import isoscale.env
    except ModuleNotFoundError:
        # Only the script's own directory, or the working directory, has it; it is found through its package now.
        sys.path.append(str(Path(LAUNCHER).parents[3]))
        import isoscale.env  # noqa: F401

        sys.path.pop()
    from isoscale.runtime.code.launch import main as launched

    launched(sys.argv[1:])
