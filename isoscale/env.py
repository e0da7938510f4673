"""Every environment variable that isoscale reads: its name, its meaning, its check.

Nothing else in the package touches `os.environ` (ruff checks it). A variable that is unset or empty gives None, or
False for a switch; defaults belong to whoever asks. A bad value is a `UserError`. Launchers set the variables of a
process they start through `child_environment`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from isoscale import limits
from isoscale.errors import UserError

__all__ = [
    "CA_FILE",
    "CLUSTER",
    "CODE",
    "CODE_DIGEST",
    "COORDINATOR",
    "EXECUTOR",
    "FAULT",
    "KEY",
    "OUT",
    "REFERENCE",
    "REPLAY",
    "SEED",
    "SERVICE_FAULT",
    "SERVICE_JOB",
    "STORAGE",
    "TOKEN_FILE",
    "WARM",
    "WARM_DIRECTORY",
    "WORKERS",
    "ca_file",
    "child_environment",
    "cluster",
    "code",
    "code_digest",
    "coordinator",
    "executor",
    "fault",
    "has_breakpoint_hook",
    "has_unused_ray_token",
    "host",
    "is_reference",
    "kept_breakpoint_hook",
    "key",
    "num_logical_workers",
    "num_threads",
    "out",
    "python_path",
    "ray_address",
    "replace",
    "replay",
    "runtime_directory",
    "seed",
    "service_fault",
    "service_job",
    "set_variable",
    "storage",
    "token_file",
    "warm_directory",
    "warm_parent",
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
CODE_DIGEST = "ISOSCALE_CODE_DIGEST"
STORAGE = "ISOSCALE_STORAGE"
WARM = "ISOSCALE_WARM"
WARM_DIRECTORY = "ISOSCALE_WARM_DIRECTORY"
KEY = "ISOSCALE_KEY"
SERVICE_JOB = "ISOSCALE_SERVICE_JOB"
CLUSTER = "ISOSCALE_CLUSTER"
SERVICE_FAULT = "ISOSCALE_SERVICE_FAULT"
_BREAKPOINT = "PYTHONBREAKPOINT"


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


def code_digest(environ: Mapping[str, str] = os.environ) -> str:
    """Of the code that this process is to run, by which it is known in the run's storage; "" if there is none."""
    return environ.get(CODE_DIGEST, "")


def storage(environ: Mapping[str, str] = os.environ) -> str | None:
    """The URL of the run's storage, in an executor whose machine may not see the run's directory."""
    return environ.get(STORAGE) or None


def cluster(environ: Mapping[str, str] = os.environ) -> str | None:
    """The cluster service that commands talk to: its STATE, or its URL."""
    return environ.get(CLUSTER) or None


def service_fault(environ: Mapping[str, str] = os.environ) -> str | None:
    """Where a test lets the cluster service die (`cluster.faults`)."""
    return environ.get(SERVICE_FAULT) or None


def key(environ: Mapping[str, str] = os.environ) -> str:
    """What only the coordinator that started this executor, and its successors, have given to it; "" without one."""
    return environ.get(KEY, "")


def service_job(environ: Mapping[str, str] = os.environ) -> str:
    """By which a cluster service knows the job whose coordinator this process is to be; "" if none started it."""
    return environ.get(SERVICE_JOB, "")


def warm_parent(environ: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """An open socket to a warm parent (`backends.warm`) that this coordinator has been given, and its process id."""
    value = environ.get(WARM)
    if not value:
        return None
    socket, _, pid = value.partition(",")
    if not (socket.isdecimal() and pid.isdecimal()):
        raise UserError(field=WARM, value=value, problem="not a socket and a process", remedy="leave it unset")
    return int(socket), int(pid)


def warm_directory(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where `isoscale warm` and the runs that it serves meet, if not at the usual place."""
    return _path(WARM_DIRECTORY, environ)


def runtime_directory(environ: Mapping[str, str] = os.environ) -> Path | None:
    """A directory of this user that goes when the user logs out, where the system has one."""
    return _path("XDG_RUNTIME_DIR", environ)


def has_unused_ray_token(environ: Mapping[str, str] = os.environ) -> bool:
    """A token for Ray clusters lies on this machine, and nothing says that it is to be shown."""
    if environ.get("RAY_AUTH_MODE"):
        return False
    named = environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or Path("~/.ray/auth_token").expanduser().is_file()


def ray_address(environ: Mapping[str, str] = os.environ) -> str | None:
    """The head of the Ray cluster to use, by Ray's own variable."""
    return environ.get("RAY_ADDRESS") or None


def python_path(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Directories that Python's own variable puts on the import path."""
    return tuple(environ.get("PYTHONPATH", "").split(os.pathsep)) if environ.get("PYTHONPATH") else ()


def num_threads(environ: Mapping[str, str] = os.environ) -> int | None:
    """With how many threads kernels compute, by OpenMP's own variable."""
    value = environ.get("OMP_NUM_THREADS", "")
    return int(value) if value.isdecimal() else None


def has_breakpoint_hook(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user chose what `breakpoint()` does, by Python's own variable."""
    return bool(environ.get(_BREAKPOINT))


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


def set_variable(name: str, value: str) -> None:
    """For a library that is imported later, in this process."""
    os.environ[name] = value


@contextlib.contextmanager
def kept_breakpoint_hook() -> Iterator[None]:
    """Whatever happens meanwhile, `breakpoint()` does afterwards what it did before, here and in what this starts."""
    chosen = os.environ.get(_BREAKPOINT)
    try:
        yield
    finally:
        os.environ.pop(_BREAKPOINT, None)
        if chosen is not None:
            os.environ[_BREAKPOINT] = chosen


def _path(name: str, environ: Mapping[str, str]) -> Path | None:
    value = environ.get(name)
    return Path(value) if value else None


def _integer(name: str, environ: Mapping[str, str], bounds: limits.Range) -> int | None:
    value = environ.get(name)
    return limits.whole(value, name, bounds) if value else None
