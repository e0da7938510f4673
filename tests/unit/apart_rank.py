"""One rank of test_broken_exchange: the first one waits for the last one, which is stopped; the one between is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch

from isoscale.core.reduction.exchange import ExchangeBrokenError
from isoscale.runtime.transport import groups
from isoscale.runtime.transport.gloo import connect, receive_blob
from isoscale.types import Placement


def main(index: int, directory: Path) -> None:
    exchange = connect(str(directory / "store"), Placement(shares=(1, 1, 1)), index)
    exchange.sum_int64(torch.zeros(1, dtype=torch.int64))
    if index == 1:
        os._exit(0)
    if index == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    while not (directory / "others are gone").exists():
        time.sleep(0.01)
    with contextlib.suppress(ExchangeBrokenError):
        receive_blob(exchange.group, 1)  # from here on it is known to be gone
    woken = threading.Event()

    def wait() -> None:
        try:
            receive_blob(exchange.group, 2)
        except ExchangeBrokenError:
            woken.set()

    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.2)
    groups.break_off(exchange)
    # Not as long as gloo itself waits for a message.
    print("woken" if woken.wait(10) else "still waiting", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
