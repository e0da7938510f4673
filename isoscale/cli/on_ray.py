"""Options of commands whose jobs run on a Ray cluster, and what is made of them. Imports Ray only if asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isoscale import limits
from isoscale.errors import UserError
from isoscale.types import RayOptions

__all__ = ["Address", "BackendName", "Cores", "Memory", "WorkingDir", "listening_address", "parse_bytes", "ray_options"]

_PANEL = "Other machines"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

BackendName = Annotated[
    str, typer.Option("--backend", help="Where executors run: local or ray.", rich_help_panel=_PANEL)
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Head of the Ray cluster.  \\[default: this machine's, or a small one of its own]",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
Cores = Annotated[
    int | None,
    typer.Option(
        help="CPUs of its Ray node that an executor takes.  \\[default: --threads]",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory of its Ray node that an executor takes, such as 4G.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
WorkingDir = Annotated[
    Path | None,
    typer.Option(
        help="Directory that Ray brings to every node, for executors to work in.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]


def ray_options(
    backend: str,
    *,
    address: str | None,
    cores: int | None,
    memory: str | None = None,
    working_dir: Path | None = None,
    threads: int = 1,
) -> RayOptions | None:
    """None: this machine. Connects to the cluster, so that a mistake is told before anything is begun."""
    given = {"--address": address, "--cores": cores, "--memory": memory, "--working-dir": working_dir}
    if backend == "local":
        for field, value in given.items():
            if value is not None:
                problem, remedy = "is for a Ray cluster", "give --backend ray, too"
                raise UserError(field=field, value=value, problem=problem, remedy=remedy)
        return None
    if backend != "ray":
        raise UserError(field="--backend", value=backend, problem="no such backend", remedy="give local or ray")
    if working_dir is not None and not working_dir.is_dir():
        problem, remedy = "is no directory", "give one of this machine"
        raise UserError(field="--working-dir", value=working_dir, problem=problem, remedy=remedy)
    found = RayOptions(
        address=address or "",
        cores=float(limits.within(threads if cores is None else cores, "--cores", limits.THREADS)),
        memory_bytes=parse_bytes(memory, "--memory"),
        working_dir="" if working_dir is None else str(working_dir.resolve()),
    )
    from isoscale.backends.ray_connection import connect

    connect(found.address, found.working_dir)
    return found


def listening_address(ray: RayOptions | None, listen: str | None) -> str:
    """Where a job's sockets are: executors on a Ray cluster reach this machine under the address that Ray knows."""
    if listen is not None or ray is None:
        return listen or "127.0.0.1"
    from isoscale.backends.ray_connection import own_address

    return own_address()


def parse_bytes(text: str | None, field: str) -> int:
    """0 for None. Raises UserError.

    >>> parse_bytes("4G", "--memory") == 4 * 2**30
    True
    """
    if text is None:
        return 0
    number, unit = text.strip().upper().removesuffix("IB").removesuffix("B"), ""
    if number and number[-1] in _UNITS:
        number, unit = number[:-1], number[-1]
    if not number.strip().isdecimal() or not 0 < int(number) * _UNITS[unit] < 2**50:
        raise UserError(field=field, value=text, problem="not a size", remedy="give bytes, or such as 500M or 4G")
    return int(number) * _UNITS[unit]
