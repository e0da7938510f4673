"""One executor of test_broken_exchange: the other one goes, and this one goes on alone."""

from __future__ import annotations

import os
import queue
import sys
import threading
import weakref
from pathlib import Path

from isoscale.core.context import ContextSwitch
from isoscale.core.engine import Recovery, StepEngine
from isoscale.core.reduction.exchange import ExchangeBrokenError, LocalExchange
from isoscale.core.rules import Turn
from isoscale.runtime.transport.gloo import connect
from isoscale.types import Placement


class NobodyElse:
    def recover(self, broken: ExchangeBrokenError) -> Recovery:
        return Recovery(LocalExchange(2), None)


def main(index: int, directory: Path) -> None:
    exchange = connect(str(directory / "store"), Placement(shares=(1, 1)), index)
    if index == 1:
        os._exit(0)
    forgotten: queue.SimpleQueue[str] = queue.SimpleQueue()
    weakref.finalize(exchange.group, lambda: forgotten.put(threading.current_thread().name))
    engine = StepEngine(exchange, ContextSwitch(2, 0), Turn())
    engine.contexts.start()
    engine.peers = NobodyElse()
    del exchange
    engine.seal_end("end", "")
    print(forgotten.get(timeout=60), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
