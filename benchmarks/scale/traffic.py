"""Messages, bytes and decisions of one coordinator with 10 to 10,000 executors, by section of a job's life.

Executors are spread over machines of eight, so orders name where each of them listens. Counts are exact: every message
is encoded. Processor times are those of this process and cover the state machine and the encoder, not the socket.

    python -m benchmarks.scale.traffic
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.lib.result import save
from benchmarks.scale import options
from benchmarks.scale.fleet import Fleet, Traffic
from isoscale.core.numerics import determinism
from isoscale.core.numerics.fingerprint import combine_digests, kernel_digests
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m

RESULT, MINUTES = "scale_traffic", 1


def a_real_hello() -> m.Hello:
    """What an executor of this machine says of itself."""
    kernels = kernel_digests()
    factors = determinism.factors().to_dict()
    return m.Hello(
        executor=0, pid=1, kind="cpu", fingerprint=combine_digests(kernels), kernels=kernels, factors=factors
    )


def sections(fleet: Fleet) -> dict[str, Callable[[], None]]:
    machine = fleet.machine

    def start() -> None:
        fleet.decide(machine.begin)
        fleet.settle()
        fleet.seal()

    def switch() -> None:
        """Newcomers have come, all have prepared: the seal that shows it, and the first one afterwards."""
        fleet.come()
        fleet.seal()
        fleet.seal()

    def scale_out() -> None:
        fleet.decide(lambda: machine.on_request(DeviceSet((("cpu", fleet.size + 1),))))
        switch()

    def scale_in() -> None:
        fleet.decide(lambda: machine.on_request(DeviceSet((("cpu", fleet.size),))))
        switch()

    def recover() -> None:
        """Up to the first step of those left. Who replaces the dead one comes after it: that counts apart."""
        fleet.die(machine.members[fleet.size // 2])

    def replace() -> None:
        fleet.seal()
        switch()

    def notice() -> None:
        """One leaves at the next seal; another one comes later."""
        executor = machine.members[fleet.size // 3]
        fleet.decide(lambda: machine.on_notice(executor, "SIGTERM"))
        switch()
        switch()

    return {
        "start": start,
        "second": fleet.beat,
        "step": fleet.seal,
        "scale out": scale_out,
        "scale in": scale_in,
        "recover": recover,
        "replace": replace,
        "notice": notice,
        "end": fleet.finish,
    }


def measured(size: int, hello: m.Hello) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(size, Path(folder) / "events.jsonl", hello)
        for name, work in sections(fleet).items():
            gc.collect()
            with fleet.section() as traffic:
                work()
            check(fleet, name)
            rows.append({"executors": size, "section": name, **traffic.row()})
            show(size, name, traffic)
        fleet.close()
    return rows


def check(fleet: Fleet, section: str) -> None:
    """The job is where it should be, or the counts mean nothing."""
    machine = fleet.machine
    if section == "end":
        assert machine.phase == "done", machine.phase
        return
    expected = {"scale out": fleet.size + 1, "recover": fleet.size - 1}.get(section, fleet.size)
    assert len(machine.members) == expected, (section, len(machine.members))
    assert machine.attempt is None, section
    assert machine.sealed or section == "recover", section


def show(size: int, name: str, traffic: Traffic) -> None:
    print(
        f"{size:6} {name:10} in {traffic.messages_in:7} {traffic.bytes_in:12} B   out {traffic.messages_out:7} "
        f"{traffic.bytes_out:12} B   largest {traffic.largest_bytes:8} B   log {traffic.log_bytes:9} B   "
        f"decide {traffic.decide_s * 1e3:8.2f} ms   encode {traffic.encode_s * 1e3:9.2f} ms",
        flush=True,
    )


def main() -> None:
    chosen = options.parse(__doc__)
    options.lift_limit()
    hello = a_real_hello()
    rows = [row for size in options.sizes(chosen) for row in measured(size, hello)]
    save(RESULT, rows, chosen, hello_bytes=len(m.encode(hello)))


if __name__ == "__main__":
    main()
