"""Machines in a box: network namespaces joined by a switch in user space that delays, loses and cuts off.

Kernels need not have netem for it. Every machine has a TAP device, whose other end is a file descriptor of the test's;
frames go from one to the other through a thread. Processes of a machine also have process numbers of their own, so
that nobody outside can signal them, as on real machines.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@dataclass
class Machine:
    name: str
    address: str
    port: int

    @property
    def prefix(self) -> list[str]:
        """Runs a command there."""
        return ["ip", "netns", "exec", self.name]

    @property
    def own_processes(self) -> list[str]:
        """Runs a command there that nobody elsewhere can signal."""
        return [*self.prefix, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@dataclass
class Network:
    """Delays are seconds one way; loss is a probability; nothing reaches or leaves who is cut off, nor goes from one to
    the other of two who are apart."""

    machines: list[Machine] = field(default_factory=list)
    delay: float = 0.0
    loss: float = 0.0
    cut_off: set[int] = field(default_factory=set)
    apart: set[frozenset[int]] = field(default_factory=set)
    passed: int = 0
    lost: int = 0
    _closed: bool = False

    def _forward(self, seed: int) -> None:
        chance, ports = random.Random(seed), [machine.port for machine in self.machines]
        places: dict[bytes, int] = {}
        waiting: list[tuple[float, int, int, bytes]] = []
        count = 0
        while not self._closed:
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, index, frame = heapq.heappop(waiting)
                # A full queue or a device that is down loses the frame, as networks do.
                with contextlib.suppress(OSError):
                    if index not in self.cut_off:
                        os.write(ports[index], frame)
            timeout = min(0.1, max(0.0, waiting[0][0] - now)) if waiting else 0.1
            for port in select.select(ports, [], [], timeout)[0]:
                with contextlib.suppress(OSError):
                    frame = os.read(port, 65536)
                    source = ports.index(port)
                    places[frame[6:12]] = source
                    known = places.get(frame[:6])
                    targets = [known] if known is not None else [i for i in range(len(ports)) if i != source]
                    if source in self.cut_off or chance.random() < self.loss:
                        self.lost += 1
                        continue
                    self.passed += 1
                    for target in targets:
                        if frozenset((source, target)) in self.apart:
                            continue
                        count += 1
                        heapq.heappush(waiting, (time.monotonic() + self.delay, count, target, frame))


def why_not() -> str:
    """Why there can be no network here; empty if there can."""
    if os.geteuid() != 0:
        return "not root"
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            return f"no program {program}"
    try:
        with network(1):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        return f"namespaces or TAP devices are not permitted: {getattr(error, 'stderr', '') or error}"
    return ""


@contextlib.contextmanager
def network(count: int, seed: int = 0) -> Iterator[Network]:
    """`count` machines with the addresses 10.77.0.1 and so on, each in its own namespace."""
    made = Network()
    thread = threading.Thread(target=made._forward, args=(seed,), name="switch", daemon=True)
    try:
        for index in range(count):
            name = f"iso{os.getpid()}-{index}"
            machine = Machine(name, f"10.77.0.{index + 1}", _tap(f"t{os.getpid()}-{index}"))
            made.machines.append(machine)
            device = f"t{os.getpid()}-{index}"
            _ip("netns", "add", name)
            _ip("link", "set", device, "netns", name)
            for arguments in (
                ["addr", "add", f"{machine.address}/24", "dev", device],
                ["link", "set", "lo", "up"],
                ["link", "set", device, "up"],
            ):
                _ip("-n", name, *arguments)
        thread.start()
        yield made
    finally:
        made._closed = True
        if thread.is_alive():
            thread.join()
        for machine in made.machines:
            os.close(machine.port)
            subprocess.run(["ip", "netns", "del", machine.name], capture_output=True)


def _tap(name: str) -> int:
    port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(port, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    except OSError:
        os.close(port)
        raise
    return port


def deselect_network(config: pytest.Config, items: list[pytest.Item], folder: Path) -> None:
    """Tests with the marker `network` take minutes and need root: only by `-m network`."""
    if "network" in str(config.option.markexpr):
        return
    left_out = [item for item in items if folder in item.path.parents and item.get_closest_marker("network")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
