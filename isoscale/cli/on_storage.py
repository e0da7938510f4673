"""`--storage`, and runs that are named by the URL of theirs. Imports fsspec only if asked for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from isoscale.cli.job import claim_directory
from isoscale.errors import UserError
from isoscale.protocol.status import JobStatus
from isoscale.runtime.control.ended import status_after
from isoscale.runtime.control.job_handle import JobHandle
from isoscale.runtime.storage.client import is_url

__all__ = ["StorageUrl", "ended_status", "fetched_run", "handle_of", "joined_storage", "name_of"]

StorageUrl = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Keep what must survive a machine there too, for machines that share no disk, such as s3://BUCKET/RUN.",
        show_default=False,
        rich_help_panel="Other machines",
    ),
]


def name_of(place: str) -> str:
    """In short, whatever names a run.

    >>> name_of("s3://bucket/runs/a/"), name_of("runs/b")
    ('a', 'b')
    """
    return Path(place.rstrip("/")).name if is_url(place) else Path(place).resolve().name


def handle_of(place: str, ca_file: Path | None) -> JobHandle:
    """The running job of this directory or storage. Raises UserError."""
    if not is_url(place):
        return JobHandle(place, ca_file=ca_file)
    from isoscale.runtime.control.stored_handle import StoredJobHandle

    return StoredJobHandle(place, ca_file=ca_file)


def ended_status(place: str) -> JobStatus | None:
    """Of a job that has ended; None if it has not, as far as anybody can tell. Raises UserError."""
    if not is_url(place):
        return status_after(Path(place))
    from isoscale.runtime.control.stored_handle import stored_status_after

    return stored_status_after(place)


def fetched_run(url: str, out: Path | None) -> Path:
    """A run's directory, made again from its storage. Raises UserError."""
    from isoscale.runtime.code.fetching import fetch_code
    from isoscale.runtime.code.manifest import Damaged
    from isoscale.runtime.code.store import code_directory
    from isoscale.runtime.storage.client import open_storage
    from isoscale.runtime.storage.restoring import fetch_result, restore

    storage = open_storage(url, "URL")
    directory = claim_directory(out, name_of(url))
    try:
        digest = restore(storage, url, directory, lambda message: typer.echo(f"warning: {message}", err=True))
        code = code_directory(directory)
        if digest:
            fetched = fetch_code(storage, digest, code).parent
            for path in fetched.iterdir():
                path.replace(code / path.name)
            fetched.rmdir()
        fetch_result(storage, directory / "final.pt")
    except UserError:
        shutil.rmtree(directory)  # it was made, or empty
        raise
    except (OSError, Damaged) as error:
        shutil.rmtree(directory)
        problem = f"cannot be read ({error})"
        raise UserError(field="URL", value=url, problem=problem, remedy="check the storage, then try again") from None
    return directory


def joined_storage(url: str) -> tuple[str, Path]:
    """Address of the coordinator, and a file with the run's token, by the run's storage. Raises UserError."""
    from isoscale.protocol.files import write_text_atomic
    from isoscale.runtime.storage import names
    from isoscale.runtime.storage.client import open_storage
    from isoscale.runtime.storage.ledger import find_address
    from isoscale.runtime.storage.private import run_directory

    storage = open_storage(url, "--join")
    try:
        address = find_address(storage)
        token = storage.read(names.TOKEN, 4096).decode(errors="replace")
        path = run_directory(url) / "token"
        write_text_atomic(path, token, mode=0o600)
    except OSError as error:
        problem = f"no run can be found there ({error.strerror or error})"
        remedy = "give the --storage of a run, and its credentials"
        raise UserError(field="--join", value=url, problem=problem, remedy=remedy) from None
    if address is None:
        problem, remedy = "no coordinator runs this job", f"start one: isoscale resume {url}"
        raise UserError(field="--join", value=url, problem=problem, remedy=remedy)
    return address.url, path
