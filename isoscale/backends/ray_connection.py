"""The connection of this process to a Ray cluster: one that is there, or a small one of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import signal
import socket
import threading

from isoscale import env
from isoscale.errors import UserError

__all__ = ["check_installed", "cluster_address", "cluster_of_this_machine", "connect", "own_address"]

_REACH_S = 5.0
_STORE_BYTES = 80 * 2**20


def check_installed() -> None:
    """Raises UserError that names the extra."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            field="--backend", value="ray", problem="Ray is not installed", remedy="pip install 'isoscale[ray]'"
        )


def connect(address: str, working_dir: str = "") -> None:
    """`address`: HOST:PORT of the cluster's head; "": the one of this machine, or else one that ends with this process.

    `working_dir`: a directory that Ray brings to every node on which an actor of this process runs, which then works
    there. Raises UserError if nobody is there. Does nothing if this process is connected.
    """
    check_installed()
    address = address or env.ray_address() or ""
    if address in ("auto", "local"):  # words of Ray's own for what "" means here
        address = ""
    import ray

    if ray.is_initialized():
        return
    if address:
        _check_reachable(address)
    # Ray takes over SIGTERM, which means something to us, and what `breakpoint()` does, also in all that we start.
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with env.kept_breakpoint_hook():
            _connect(address, {"working_dir": working_dir} if working_dir else {})
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreachable(address, (str(error).strip() or type(error).__name__).splitlines()[0]) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in kept.items():
                signal.signal(number, handler)


def _connect(address: str, runtime_env: dict[str, str]) -> None:
    import ray

    from isoscale.backends.ray_found import NAMESPACE

    # Of the whole process: Ray uploads no directory for a single actor.
    options = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR", "runtime_env": runtime_env}
    if address or cluster_of_this_machine():
        # Of "auto" Ray knows that it is this machine's, to which it shows the token that lies here.
        ray.init(address=address or "auto", **options)
        return
    env.set_variable("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", include_dashboard=False, object_store_memory=_STORE_BYTES, **options)


def cluster_of_this_machine() -> str:
    """HOST:PORT of its head; "" if none runs. Ray remembers a dead one, too, and would wait for it for minutes."""
    from ray._private import services

    with contextlib.suppress(ConnectionError, UserError):
        if address := services.canonicalize_bootstrap_address("auto"):
            _check_reachable(address)
            return str(address)
    return ""


def cluster_address() -> str:
    """HOST:PORT of the head to which this process is connected."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def own_address() -> str:
    """Under which the cluster's nodes reach this one."""
    import ray

    return str(ray.util.get_node_ip_address())


def _check_reachable(address: str) -> None:
    """Ray would wait for minutes."""
    found = re.fullmatch(r"\[?(.+?)\]?:(\d{1,5})", address)
    if found is None or not 0 < int(found[2]) < 65536:
        raise UserError(
            field="--address", value=address, problem="not an address of a Ray head", remedy="give HOST:PORT"
        )
    try:
        socket.create_connection((found[1], int(found[2])), _REACH_S).close()
    except OSError as error:
        raise _unreachable(address, error.strerror or str(error)) from None


def _unreachable(address: str, problem: str) -> UserError:
    remedy = "start one: ray start --head, and give the HOST:PORT that it prints"
    if address and env.has_unused_ray_token():
        # `ray start` protects a cluster where a token lies, and tells nobody; a given address is not shown it.
        remedy += ". If it runs, it may want this machine's token: set RAY_AUTH_MODE=token"
    return UserError(field="--address", value=address or "none", problem=f"no Ray cluster ({problem})", remedy=remedy)
