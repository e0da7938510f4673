"""`isoscale devices`, `lend` and `reclaim`: the devices of a cluster service."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from isoscale import limits
from isoscale.cli.cluster_options import AsJson, Ca, ClusterOption, TokenFile, connect
from isoscale.cli.cluster_view import device_table
from isoscale.cli.numbers import in_range
from isoscale.cli.progress import count as counted
from isoscale.cluster.client import Client
from isoscale.cluster.values import NodeShown
from isoscale.errors import IsoscaleError, UserError

__all__ = ["devices", "lend", "reclaim", "waits_for"]

#: between two looks at what a reclaim waits for
_LOOK_S = 1.0

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


def lend(
    node: Node,
    count: Annotated[
        int | None,
        typer.Argument(
            metavar="COUNT",
            help="Devices; as many as are named, if --device is given.",
            show_default=False,
            callback=in_range(limits.EXECUTORS),
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="This one, as isoscale devices names it (may be given again).", show_default=False
        ),
    ] = None,
    cluster: ClusterOption = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Lend devices of a node to the service: those that were reclaimed before."""
    if count is None and not device:
        remedy = "give COUNT, or --device"
        raise UserError(field="COUNT", problem="neither a number nor devices", remedy=remedy)
    shown = connect(cluster, token_file, ca).lend(node, count or 0, devices=device or ())
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
    with _told(connect(cluster, token_file, ca), node, count):
        done = client.reclaim(node, count, within, force=force)
    late = " (later than asked)" if done.late else ""
    typer.echo(
        f"free after {done.seconds:.2f} s{late}: {' '.join(done.devices)}; abandoned work {done.abandoned_s:.2f} s"
    )


@contextlib.contextmanager
def _told(client: Client, node: str, count: int) -> Iterator[None]:
    """What is waited for, on stderr, whenever that changes: a call that waits an hour should say for whom."""
    console, over = Console(stderr=True, highlight=False), threading.Event()

    def watch() -> None:
        before, begun = "", time.monotonic()
        while not over.wait(_LOOK_S):
            with contextlib.suppress(IsoscaleError, OSError):
                shown = next((one for one in client.devices() if one.name == node), None)
                line = waits_for(shown, count) if shown is not None else ""
                if line != before and not over.is_set():
                    console.print(f"{time.monotonic() - begun:.0f} s: {line}", style="dim", soft_wrap=True)
                    before = line

    watcher = threading.Thread(target=watch, name="reclaim", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(_LOOK_S)


def waits_for(node: NodeShown, count: int) -> str:
    """Who still has to let go, in words; holders that the asker may not know of are "others"."""
    leaving = [device for device in node.devices if device.state == "releasing"]
    if not leaving:
        return f"waiting for {counted(count, 'device')} of {node.name}; jobs are being told"
    who = ", ".join(f"{device.job or 'another'} to leave {device.id}" for device in leaving)
    return f"waiting for {who}"
