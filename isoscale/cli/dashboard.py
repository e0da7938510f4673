"""`isoscale dashboard`: the page of one run, or a link to the pages of a cluster service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from isoscale import __version__, limits
from isoscale.cli.cluster_options import Ca, TokenFile, connect
from isoscale.cli.numbers import in_range
from isoscale.errors import UserError

__all__ = ["dashboard"]


def dashboard(
    where: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL", help="A run's directory, or the STATE or URL of a service.", show_default=False
        ),
    ],
    listen: Annotated[str, typer.Option(help="Address that it binds to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any.", callback=in_range(limits.PORT))] = 0,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Another name under which browsers reach it (may be given again).", show_default=False),
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate (PEM).", show_default=False)] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key.", show_default=False)] = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Watch a run in a browser, live; or print a link that signs a browser in to a service, once."""
    if _is_service(where):
        with connect(where, token_file, ca) as client:
            typer.echo(client.link())
        return
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        problem, remedy = "needs starlette and uvicorn", "pip install 'isoscale[cluster]'"
        raise UserError(field="dashboard", value=where, problem=problem, remedy=remedy) from None
    from isoscale.cluster.dashboard import show_run
    from isoscale.cluster.server import Listening

    console = Console(stderr=True, highlight=False)
    listening = Listening(host=listen, port=port, certificate=certificate, key=key, hosts=tuple(host or ()))
    if not listening.is_local and certificate is None:
        console.print(f"[yellow]warning[/]: --listen {listen} without --certificate: all can be read on the way")

    def ready(link: str) -> None:
        typer.echo(link)
        console.print("works once, for 10 minutes; Ctrl-C ends the page, not the run", style="dim", soft_wrap=True)

    show_run(Path(where), listening, ready, ca=ca, version=__version__)


def _is_service(where: str) -> bool:
    return where.startswith(("http://", "https://")) or (Path(where) / "cluster.sqlite").is_file()
