"""Which machine this is: processes with the same answer can signal each other."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

__all__ = ["machine_id"]


def machine_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()
