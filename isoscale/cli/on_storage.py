"""`--storage`, and runs that are named by the URL of theirs. Imports fsspec only if asked for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from isoscale.cli.job import claim_directory
from isoscale.errors import UserError

__all__ = ["StorageUrl", "fetched_run", "joined_storage"]

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


def fetched_run(url: str, out: Path | None) -> Path:
    """A run's directory, made again from its storage. Raises UserError."""
    from isoscale.runtime.code.fetching import fetch_code
    from isoscale.runtime.code.manifest import Damaged
    from isoscale.runtime.code.store import code_directory
    from isoscale.runtime.storage.client import open_storage
    from isoscale.runtime.storage.restoring import fetch_result, restore

    storage = open_storage(url, "URL")
    directory = claim_directory(out, Path(url.rstrip("/")).name)
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
