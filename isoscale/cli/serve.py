"""`isoscale serve`: the cluster service in the foreground. Ctrl-C ends it; jobs go on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from isoscale import __version__, limits
from isoscale.cli.numbers import in_range
from isoscale.cli.on_ray import Address, Cores, Memory, ray_options
from isoscale.cli.on_storage import StorageUrl
from isoscale.cli.outcome import ToldExit
from isoscale.errors import UserError

if TYPE_CHECKING:
    from isoscale.cluster.service import Service

__all__ = ["parse_quotas", "serve"]

_QUOTA = limits.Range(0, limits.CLUSTER_DEVICES.most)


def serve(
    state: Annotated[Path, typer.Option(help="Directory of everything that it keeps.")] = Path("cluster"),
    devices: Annotated[
        str | None,
        typer.Option(
            help='Devices of this machine, such as "cpu*4".  \\[default: one for each core]', show_default=False
        ),
    ] = None,
    pin: Annotated[
        bool, typer.Option("--pin", help="Each device has a core of its own: its processes run there only.")
    ] = False,
    backend: Annotated[str, typer.Option(help="Where jobs run: local or ray.")] = "local",
    address: Address = None,
    cores: Cores = None,
    memory: Memory = None,
    storage: StorageUrl = None,
    policy: Annotated[
        str, typer.Option(metavar="NAME[(options)]", help="Who gets which devices; isoscale policies lists them.")
    ] = "easyscale(room=true)",
    interval: Annotated[
        float | None,
        typer.Option(
            help="Seconds between decisions; 0: at every event (0.2 where time matters).  "
            "\\[default: 1, or 0 where it does not]",
            show_default=False,
            callback=in_range(limits.INTERVAL_S),
        ),
    ] = None,
    quotas: Annotated[
        str | None,
        typer.Option(
            help="Devices that a tenant may hold while others wait, such as team-a=2,team-b=4.", show_default=False
        ),
    ] = None,
    trial: Annotated[
        float,
        typer.Option(
            help="Seconds that a new job trains on its fewest devices before it may get more: what fails at once fails "
            "there.",
            callback=in_range(limits.Range(0.0, 86_400.0)),
        ),
    ] = 0.0,
    max_waiting: Annotated[
        int, typer.Option(help="Jobs of one tenant that are not over.", callback=in_range(limits.Range(1, 10**6)))
    ] = 10_000,
    webhook: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="POST every change of a job's state there (may be given again).", show_default=False
        ),
    ] = None,
    listen: Annotated[str, typer.Option(help="Address that it binds to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: any.", callback=in_range(limits.PORT))] = 0,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Another name under which clients reach it (may be given again).", show_default=False),
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate (PEM).", show_default=False)] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key.", show_default=False)] = None,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild", help="Make a new database from the jobs' own directories; the old one is kept aside."
        ),
    ] = False,
) -> None:
    """Share this machine's devices between many jobs. Jobs outlive the service; they run as the user who runs it."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        problem, remedy = "needs starlette and uvicorn", "pip install 'isoscale[cluster]'"
        raise UserError(field="serve", value="cluster", problem=problem, remedy=remedy) from None
    from isoscale.cluster import faults
    from isoscale.cluster.links import address as link
    from isoscale.cluster.machine import make_cluster, pin_devices
    from isoscale.cluster.rebuild import rebuild as make_anew
    from isoscale.cluster.server import BEGIN_AGAIN, Listening
    from isoscale.cluster.server import serve as run
    from isoscale.cluster.service import Configuration
    from isoscale.cluster.settings import one_policy
    from isoscale.cluster.webhooks import check_address
    from isoscale.scheduling.driver import device_names

    ray = ray_options(backend, address=address, cores=cores, memory=memory)
    if ray is not None and devices is not None:
        problem, remedy = "a Ray cluster's nodes say which devices there are", "leave it out"
        raise UserError(field="--devices", value=devices, problem=problem, remedy=remedy)
    faults.arm()
    console = Console(stderr=True, highlight=False)
    configuration = Configuration(
        state=state.absolute(),
        devices=devices or f"cpu*{_cores()}",
        ray=ray,
        storage=checked_storage(storage),
        pin=pin,
        policy=policy,
        interval_s=interval,
        quotas=parse_quotas(quotas),
        trial_s=trial,
        max_waiting=max_waiting,
        webhooks=tuple(check_address(url) for url in webhook or ()),
        version=__version__,
    )
    # Checked before a directory is made, so that a mistake leaves nothing behind.
    cluster = make_cluster(configuration.devices)
    if pin:
        pin_devices(device_names(cluster))
    one_policy(policy)
    listening = Listening(host=listen, port=port, certificate=certificate, key=key, hosts=tuple(host or ()))
    if rebuild:
        kept = make_anew(configuration.state)
        console.print(f"rebuilt from {kept.jobs} job directories; the old database is {kept.aside or 'none'}")
    if not listening.is_local and certificate is None:
        console.print(
            f"[yellow]warning[/]: --listen {listen} without --certificate: tokens cross the network in the clear"
        )

    def ready(url: str, service: Service) -> None:
        shown = configuration.devices if ray is None else "a Ray cluster"
        console.print(f"serving {url}  ({shown}, policy {policy}); state and token in {state}", soft_wrap=True)
        console.print(f"dashboard {link(url, service.first_link())}  (works once, for 10 minutes)", soft_wrap=True)
        console.print("jobs run as this user; Ctrl-C ends the service, not its jobs", style="dim", soft_wrap=True)

    code = run(configuration, listening, ready)
    if code == BEGIN_AGAIN:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    raise ToldExit(code)


def parse_quotas(text: str | None) -> dict[str, int]:
    """`team-a=2,team-b=4`. Raises UserError.

    >>> parse_quotas("team-a=2,team-b=4")
    {'team-a': 2, 'team-b': 4}
    """
    quotas: dict[str, int] = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        tenant, equals, count = (one.strip() for one in part.partition("="))
        if not equals or not tenant:
            raise UserError(
                field="--quotas", value=text, problem=f"{part!r} is not TENANT=DEVICES", remedy="give team-a=2,team-b=4"
            )
        quotas[tenant] = limits.whole(count, "--quotas", _QUOTA, part_of=text or "")
    return quotas


def checked_storage(url: str | None) -> str:
    """Before a job needs it. Raises UserError."""
    if url is None:
        return ""
    from isoscale.runtime.storage.client import check_conditional, open_storage

    url = url.rstrip("/")
    check_conditional(open_storage(url), url)
    return url


def _cores() -> int:
    return len(os.sched_getaffinity(0))
