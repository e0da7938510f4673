"""How commands find the cluster service, and options that they share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isoscale.cluster.client import Client

__all__ = ["AsJson", "Ca", "ClusterOption", "JobId", "TokenFile", "connect"]

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="DIR|URL",
        help="The service: its STATE, or its URL.  \\[default: ISOSCALE_CLUSTER, else cluster]",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="File with your token.  \\[default: ISOSCALE_TOKEN_FILE, else STATE/token]", show_default=False),
]
Ca = Annotated[
    Path | None, typer.Option("--ca", help="Certificates to trust, where the service uses TLS.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="Of the job, as submit printed it.", show_default=False)]


def connect(cluster: str | None, token_file: Path | None, ca: Path | None = None) -> Client:
    """Raises UserError if no service is there."""
    return Client(cluster, token_file=token_file, ca_file=ca)
