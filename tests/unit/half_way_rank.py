"""One rank of test_broken_exchange: the other one goes while a large message is half way, unnoticed by gloo."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from isoscale.core.reduction.exchange import ExchangeBrokenError
from isoscale.runtime.transport import gloo, groups
from isoscale.runtime.transport.gloo import connect, receive_blob, send_blob
from isoscale.types import Placement

#: more than sockets have room for, and enough to be stopped in the midst of it
BYTES = 2**27
#: the tags of `send_blob`: its size, its bytes
TAGS = (2**30, 2**30 + 1)


def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.001)


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def go(exchange: Any, story: str) -> None:
    """The one that is stopped, and never goes on."""
    large = torch.ones(BYTES, dtype=torch.uint8)
    if story == "receives":
        send_blob(exchange.group, large, 0)
        return
    size = torch.zeros(1, dtype=torch.int64)
    if story == "sends":
        kept = [exchange.group.recv([into], 0, tag) for into, tag in zip((size, large), TAGS, strict=True)]
    else:
        kept = [exchange.group.allreduce([large.view(torch.int64)])]
    os.kill(os.getpid(), signal.SIGSTOP)
    del kept


def main(index: int, directory: Path, story: str) -> None:
    gloo._PIECE = BYTES  # all of it in one message
    exchange = connect(str(directory / "store"), Placement(shares=(1, 2)), index)
    exchange.sum_int64(torch.zeros(1, dtype=torch.int64))
    pid, stopped = directory / "pid", directory / "stopped"
    if index == 1:
        (directory / "pid.new").write_text(str(os.getpid()))
        (directory / "pid.new").rename(pid)
        go(exchange, story)
        time.sleep(1000)
    large = torch.ones(BYTES, dtype=torch.uint8)
    work: dict[str, Callable[[], object]] = {
        "sends": lambda: send_blob(exchange.group, large, 1),
        "receives": lambda: receive_blob(exchange.group, 1),
        "sums": lambda: exchange.sum_int64(large.view(torch.int64)),
    }
    outcome: list[str] = []

    def wait() -> None:
        try:
            work[story]()
            outcome.append("done")
        except ExchangeBrokenError:
            outcome.append("woken")

    until(pid.exists if story == "receives" else stopped.exists)
    other, before = int(pid.read_text()), memory()
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    if story == "receives":
        until(lambda: memory() > before + BYTES // 32 or not thread.is_alive())
        os.kill(other, signal.SIGSTOP)
    time.sleep(0.5)
    if thread.is_alive():
        os.kill(other, signal.SIGKILL)
        time.sleep(0.5)
        groups.break_off(exchange)
        # Not as long as gloo itself waits for a message.
        thread.join(10)
    print(*outcome or ["still waiting"], flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
