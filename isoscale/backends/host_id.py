"""Which machine this is: processes with the same answer can signal each other and see the same files."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

__all__ = ["machine_id"]


def machine_id() -> str:
    """Containers of one machine have their own process ids and files, so the namespaces of both are part of it."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.readlink('/proc/self/ns/mnt')}"
    return socket.gethostname()
