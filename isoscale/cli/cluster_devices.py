"""`isoscale devices`, `lend` and `reclaim`: the devices of a cluster service."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console

from isoscale import limits
from isoscale.cli.cluster_options import AsJson, Ca, ClusterOption, TokenFile, connect
from isoscale.cli.cluster_view import device_table
from isoscale.cli.numbers import in_range
from isoscale.cli.progress import count as counted

__all__ = ["devices", "lend", "reclaim"]

Node = Annotated[str, typer.Argument(metavar="NODE", help="As isoscale devices names it.", show_default=False)]
Count = Annotated[
    int, typer.Argument(metavar="COUNT", help="Devices.", show_default=False, callback=in_range(limits.EXECUTORS))
]


def devices(
    as_json: AsJson = False, cluster: ClusterOption = None, token_file: TokenFile = None, ca: Ca = None
) -> None:
    """Show the devices of a cluster service, and which job holds each."""
    nodes = connect(cluster, token_file, ca).devices()
    if as_json:
        found = [device for node in nodes for device in node.devices]
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
    else:
        Console().print(device_table(nodes))


def lend(node: Node, count: Count, cluster: ClusterOption = None, token_file: TokenFile = None, ca: Ca = None) -> None:
    """Lend devices of a node to the service: those that were reclaimed before."""
    shown = connect(cluster, token_file, ca).lend(node, count)
    typer.echo(f"{shown.name}: {counted(shown.num_ours, 'device')} of {shown.num_devices} for jobs")


def reclaim(
    node: Node,
    count: Count,
    within: Annotated[
        float | None,
        typer.Option(
            help="Seconds by which they must be free: steps that take longer are abandoned.",
            show_default=False,
            callback=in_range(limits.Range(0.1, 86_400.0)),
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Consent to lose work that cannot be saved in time.")] = False,
    cluster: ClusterOption = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Take devices of a node back from the service; returns when they are free."""
    client = connect(cluster, token_file, ca)
    done = client.reclaim(node, count, within, force=force)
    late = " (later than asked)" if done.late else ""
    typer.echo(
        f"free after {done.seconds:.2f} s{late}: {' '.join(done.devices)}; abandoned work {done.abandoned_s:.2f} s"
    )
