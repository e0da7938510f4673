"""Sockets of processes, as the kernel knows them."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_STATES = {"01": "established", "0A": "listening"}


@dataclass(frozen=True)
class Found:
    pid: int
    state: str
    local: str
    port: int
    remote: str

    @property
    def addresses(self) -> list[str]:
        return [self.local] if self.state == "listening" else [self.local, self.remote]


def tcp_sockets(pids: Iterable[int]) -> Iterator[Found]:
    """Every TCP socket, of both families, that one of the processes has open."""
    owners: dict[str, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor)):
                        owners[match[1]] = pid
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in owners:
                local, port = _address(fields[1])
                yield Found(owners[fields[9]], _STATES.get(fields[3], fields[3]), local, port, _address(fields[2])[0])


def is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def _address(text: str) -> tuple[str, int]:
    """32-bit words in the machine's order, as hexadecimal digits."""
    digits, port = text.split(":")
    words = [int(digits[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(digits), 8)]
    raw = b"".join(words)
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw), int(port, 16)
