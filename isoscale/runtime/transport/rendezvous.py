"""Where the members of a generation find each other: a file (`Control.meeting_place`), or a store on one of them.

On one machine a file is enough, and outlives everybody. Across machines that need not share a directory the first
member serves a TCP store. Either way it is not the coordinator's: a group can form while that is gone.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch.distributed

__all__ = ["StoreServer", "open_store"]

# torch ships no complete type stubs for stores.
dist: Any = torch.distributed


#: a store ends with its last reference, and others may come to it at any time
_served: list[Any] = []


class StoreServer:
    """A store on this executor, for groups of which it is the first member. Lives as long as the process."""

    def __init__(self, host: str) -> None:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.bind((host, 0))
        listener.listen()
        self.port = int(listener.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        self.address = f"tcp://{shown}:{self.port}"
        # torch would bind to every address of the machine.
        _served.append(
            dist.TCPStore(host, self.port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
        )


def open_store(place: str, size: int, timeout: timedelta) -> Any:
    """A path, or tcp://HOST:PORT/NAME. Raises RuntimeError if it cannot be reached."""
    if not place.startswith("tcp://"):
        store = dist.FileStore(place, size)
        store.set_timeout(timeout)
        return store
    parts = urlsplit(place)
    server = dist.TCPStore(parts.hostname, parts.port, is_master=False, timeout=timeout)
    return dist.PrefixStore(parts.path.strip("/"), server)
