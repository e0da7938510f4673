"""Every environment variable that isoscale reads: its name, its meaning, its check.

Nothing else in the package touches `os.environ` (ruff checks it). A variable that is unset or empty gives None, or
False for a switch; defaults belong to whoever asks. A bad value is a `UserError`. Launchers set the variables of a
process they start through `child_environment`.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from isoscale import limits
from isoscale.errors import UserError

__all__ = [
    "CA_FILE",
    "CODE",
    "COORDINATOR",
    "EXECUTOR",
    "FAULT",
    "OUT",
    "REFERENCE",
    "REPLAY",
    "SEED",
    "TOKEN_FILE",
    "WORKERS",
    "ca_file",
    "child_environment",
    "code",
    "coordinator",
    "executor",
    "fault",
    "has_breakpoint_hook",
    "host",
    "is_reference",
    "num_logical_workers",
    "out",
    "python_path",
    "replace",
    "replay",
    "seed",
    "token_file",
]

COORDINATOR = "ISOSCALE_COORDINATOR"
TOKEN_FILE = "ISOSCALE_TOKEN_FILE"
CA_FILE = "ISOSCALE_CA_FILE"
EXECUTOR = "ISOSCALE_EXECUTOR"
HOST = "ISOSCALE_HOST"
OUT = "ISOSCALE_OUT"
WORKERS = "ISOSCALE_WORKERS"
SEED = "ISOSCALE_SEED"
REFERENCE = "ISOSCALE_REFERENCE"
REPLAY = "ISOSCALE_REPLAY"
FAULT = "ISOSCALE_FAULT"
CODE = "ISOSCALE_CODE"


def coordinator(environ: Mapping[str, str] = os.environ) -> str | None:
    """The WebSocket URL of the job's coordinator; set in executors, unset when a script runs alone."""
    url = environ.get(COORDINATOR)
    if not url:
        return None
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port is not None
    except ValueError:  # a port out of range, a broken IPv6 address
        is_valid = False
    if not is_valid:
        raise UserError(
            field=COORDINATOR, value=url, problem="not a coordinator's address", remedy="give ws://HOST:PORT"
        )
    return url


def token_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file that holds the run's token. A path and not the token: environments are inherited, dumped and logged."""
    return _path(TOKEN_FILE, environ)


def ca_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Certificates by which an executor knows its coordinator, where the address is wss://."""
    return _path(CA_FILE, environ)


def host(environ: Mapping[str, str] = os.environ) -> str | None:
    """The address under which other executors reach this one, where it is not the one that reaches the coordinator."""
    value = environ.get(HOST)
    if not value:
        return None
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise UserError(field=HOST, value=value, problem="not an IP address", remedy="give this machine's") from None


def executor(environ: Mapping[str, str] = os.environ) -> int | None:
    """The id that the coordinator gave to this executor."""
    return _integer(EXECUTOR, environ, limits.EXECUTOR_ID)


def out(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The run's output directory."""
    return _path(OUT, environ)


def num_logical_workers(environ: Mapping[str, str] = os.environ) -> int | None:
    """How many logical workers a script has that runs alone, as `python train.py`."""
    return _integer(WORKERS, environ, limits.LOGICAL_WORKERS)


def seed(environ: Mapping[str, str] = os.environ) -> int | None:
    """The job's seed. That `seed + logical_rank` also fits in 32 bits is for the job to check."""
    return _integer(SEED, environ, limits.SEED)


def is_reference(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a rank of the stock DDP reference that `isoscale verify` runs."""
    value = environ.get(REFERENCE, "")
    if value not in ("", "0", "1"):
        raise UserError(field=REFERENCE, value=value, problem="not a switch", remedy="give 1, or leave it unset")
    return value == "1"


def replay(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The request that `isoscale replay` wrote for this process: which run, up to which step."""
    return _path(REPLAY, environ)


def fault(environ: Mapping[str, str] = os.environ) -> str | None:
    """Faults that a test wants inside executors (`runtime.executor.fault_points`); coordinators hand it on to them."""
    return environ.get(FAULT) or None


def code(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The manifest of the code that this process is to run (`runtime.code`)."""
    return _path(CODE, environ)


def python_path(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Directories that Python's own variable puts on the import path."""
    return tuple(environ.get("PYTHONPATH", "").split(os.pathsep)) if environ.get("PYTHONPATH") else ()


def has_breakpoint_hook(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user chose what `breakpoint()` does, by Python's own variable."""
    return bool(environ.get("PYTHONBREAKPOINT"))


def child_environment(variables: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a process to start: this one's, with `variables` set.

    This process's own ISOSCALE_ variables are not handed on: they say who *it* is.
    """
    inherited = {name: value for name, value in environ.items() if not name.startswith("ISOSCALE_")}
    return {**inherited, **variables}


def replace(variables: Mapping[str, str]) -> None:
    """Make them this process's whole environment: of a fork that is to be another process (`isoscale.testing`)."""
    os.environ.clear()
    os.environ.update(variables)


def _path(name: str, environ: Mapping[str, str]) -> Path | None:
    value = environ.get(name)
    return Path(value) if value else None


def _integer(name: str, environ: Mapping[str, str], bounds: limits.Range) -> int | None:
    value = environ.get(name)
    return limits.whole(value, name, bounds) if value else None
