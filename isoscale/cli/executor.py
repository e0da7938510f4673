"""`isoscale executor`: become an executor of a job that runs, from any shell, Slurm step or pod."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from isoscale.cli.live_job import Ca
from isoscale.cli.on_storage import joined_storage
from isoscale.cli.progress import count
from isoscale.cli.scripts import resolved, script_here
from isoscale.errors import IsoscaleError, UserError
from isoscale.protocol.files import read_small
from isoscale.runtime.control.directory import MAX_TOKEN_BYTES, control_directory, read_address

if TYPE_CHECKING:
    from isoscale.protocol.messages import Welcome
    from isoscale.runtime.control.join import CodeHere

__all__ = ["executor"]


def executor(
    join: Annotated[
        str,
        typer.Option(
            help="The coordinator: ws://HOST:PORT, or DIR of the run where this machine sees it, or its --storage."
        ),
    ],
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the run's token.  \\[default: control/token of --join DIR]", show_default=False),
    ] = None,
    kind: Annotated[str, typer.Option(help="What this device is.")] = "cpu",
    script: Annotated[
        str | None,
        typer.Option(help="The training script, where it has another path on this machine.", callback=resolved),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address under which other executors reach this one, if it must be chosen.")
    ] = None,
    ca: Ca = None,
) -> None:
    """Join a running job from any shell, Slurm step or pod: serves as a spare until the job wants it."""
    from isoscale import env
    from isoscale.backends.local import training_environment
    from isoscale.kinds import KNOWN_KINDS, check_kind, profile_named, profile_of
    from isoscale.runtime.code.launch import command_of
    from isoscale.runtime.control.join import ask_to_join

    if kind not in KNOWN_KINDS:
        remedy = f"give one of {', '.join(KNOWN_KINDS)}"
        raise UserError(field="--kind", value=kind, problem="unknown device kind", remedy=remedy)
    check_kind(kind, field="--kind")
    url, token_path = _address(join, token_file)
    token = _token(token_path)
    try:
        welcome = ask_to_join(url, token, kind, ca)
    except UserError as error:
        if error.field != "--token-file":
            raise
        problem = "is not the token of the job there"
        raise UserError(field=error.field, value=token_path, problem=problem, remedy=error.remedy) from None
    spec = welcome.spec
    code = _code(join, welcome, script)
    profile = profile_named(spec.profile) if spec.profile else profile_of(kind)
    variables = {
        env.COORDINATOR: url.rstrip("/"),
        env.TOKEN_FILE: str(token_path.resolve()),
        env.EXECUTOR: str(welcome.executor),
    }
    if welcome.settings.storage:
        variables |= {env.STORAGE: welcome.settings.storage, env.CODE_DIGEST: spec.code}
    if code.manifest is not None:
        variables[env.CODE] = str(code.manifest)
    if ca is not None:
        variables[env.CA_FILE] = str(ca.resolve())
    if host is not None:
        variables[env.HOST] = host
    environment = training_environment(variables, profile, spec.threads)
    Console(stderr=True).print(
        Text(f"joined as executor {welcome.executor} of a job of {count(spec.workers, 'logical worker')}", style="dim")
    )
    sys.stderr.flush()
    command = command_of(spec, kept=code.manifest is not None, script=str(code.script))
    try:
        os.execve(command[0], command, environment)
    except OSError as error:
        raise IsoscaleError(f"{code.script}: {error}") from None


def _code(join: str, welcome: Welcome, script: str | None) -> CodeHere:
    """What this executor runs: the run's own code, if its storage or its directory has it. Raises UserError."""
    from isoscale.runtime.control.join import code_here, code_in_storage

    given = Path(script) if script is not None else None
    stored = code_in_storage(join, welcome) if given is None else None
    return stored or code_here(join, welcome, given, script_here(welcome.spec.script))


def _address(join: str, token_file: Path | None) -> tuple[str, Path]:
    """The coordinator's URL and the file of the token; from the run's directory or storage, if that was given."""
    if "://" in join and not join.startswith(("ws://", "wss://")):
        url, path = joined_storage(join)
        return url, token_file or path
    if not join.startswith(("ws://", "wss://")):
        if not Path(join).is_dir():
            problem = "neither an address nor a directory that is here"
            remedy = "give ws://HOST:PORT or wss://HOST:PORT, as in DIR/control/coordinator.json, or DIR itself"
            raise UserError(field="--join", value=join, problem=problem, remedy=remedy)
        url, _ = read_address(Path(join))
        return url, token_file or control_directory(Path(join)) / "token"
    if token_file is None:
        remedy = "give DIR/control/token of the run, or a copy of it"
        raise UserError(field="--token-file", value="none", problem="an address needs the run's token", remedy=remedy)
    return join, token_file


def _token(path: Path) -> str:
    try:
        token = read_small(path, MAX_TOKEN_BYTES).decode("utf-8").strip()
        problem = "" if token else "is empty"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except UnicodeDecodeError:
        problem = "is not text"
    if problem:
        remedy = "give DIR/control/token of the run"
        raise UserError(field="--token-file", value=path, problem=problem, remedy=remedy)
    return token
