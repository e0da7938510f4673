"""Writes the tables of docs/scale.md from the kept results.

python -m benchmarks.scale.page            # rewrite the tables
python -m benchmarks.scale.page --check    # exit 1 if they are not what the results say
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.lib.generated import filled, rewrite, table
from benchmarks.lib.processes import ROOT
from benchmarks.scale import network as n
from benchmarks.scale import options

PAGE = ROOT / "docs" / "scale.md"


def seconds(value: float) -> str:
    """
    >>> [seconds(v) for v in (2.3e-6, 0.00214, 0.25, 3.46, 99.9, 9580.0)]
    ['2.3 µs', '2.1 ms', '250 ms', '3.5 s', '100 s', '2.7 h']
    """
    for unit, size in (("h", 3600.0), ("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{_two(value / size)} {unit}"
    return f"{_two(value * 1e6)} µs"


def size(value: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{_two(value / scale)} {unit}"
    return f"{value:.0f} B"


def _two(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 9.95 else f"{float(f'{value:.2g}'):.0f}"


def constants() -> str:
    kept = options.kept("scale_constants")
    c, groups = n.Constants.of(kept), kept["groups"]
    least, most = kept["rows"][0], kept["rows"][-1]

    def rows() -> Iterator[tuple[str, str, str]]:
        yield "one message between executors, both ends", seconds(c.message_s), "gloo, 2 kB, processor time"
        yield "wire latency, one way", seconds(n.WIRE_S), "assumed"
        yield "alpha", seconds(c.alpha_s), "sum of both"
        yield "beta", f"{size(c.bytes_per_s)}/s", "gloo on loopback; assumed network 3.1 GB/s"
        yield "forming a group, per connection and member", seconds(c.connection_s), "gloo, 48 members"
        yield "giving a group up, per connection", seconds(c.close_s), "gloo closes one connection a tick of its loop"
        what = f"{c.store_base_bytes:.0f} B + {c.store_member_bytes:.0f} B per member"
        yield "left in the store by each member", what, "gloo; each member reads all of it"
        yield "one look into the store", seconds(c.store_get_s), "TCPStore, processor time"
        yield "coordinator: a heartbeat and its answer", seconds(c.beat_s), "real socket, state machine, log"
        yield "coordinator: a message in", f"{seconds(c.in_s)} + {c.in_byte_s * 1e9:.1f} ns/B", "real socket"
        yield "coordinator: an order out", f"{seconds(c.out_s)} + {c.out_byte_s * 1e9:.1f} ns/B", "real socket"
        yield "seal: one executor's own work, E = 10 / 10,000", _span(least, most, "seal_s"), "one logged value"
        yield (
            "a context that changed",
            f"{c.context_bytes:.0f} B, {seconds(c.context_s)}",
            "torch's stream was drawn from",
        )
        yield "packing the state", f"{size(c.pack_bytes_per_s)}/s", "one thread"
        yield "coordinator: who is silent?, E = 10 / 10,000", _span(least, most, "watch_s"), "five times a second"
        yield "coordinator: `status`, E = 10 / 10,000", _span(least, most, "status_s"), "quadratic"
        yield (
            "coordinator: list of executors to disk, same",
            _span(least, most, "roster_file_s"),
            "at every coming and going",
        )

    assert groups["groups"]
    return table(("constant", "value", "how"), rows())


def _span(least: dict[str, Any], most: dict[str, Any], name: str) -> str:
    return f"{seconds(least[name])} / {seconds(most[name])}"


def costs() -> str:
    rows = options.kept("scale_costs")["rows"]
    lines = [
        ("gradients 26 MB, order `ddp` (ring)", "ring_s 26 MB", seconds),
        ("gradients 26 MB, order `tree` (everybody to everybody)", "direct_s 26 MB", seconds),
        ("contexts, to everybody", "contexts_s", seconds),
        ("of these bytes, received by each", "contexts_bytes", size),
        ("seal", "seal_s", seconds),
        ("hand-over to a newcomer, 52 MB of state", "hand_over_s 26 MB", seconds),
        ("hand-over to a newcomer, 2 GB of state", "hand_over_s 1 GB", seconds),
        ("a group is formed", "form_s", seconds),
        ("connections of each executor", "connections", lambda value: f"{value:,}"),
        ("scale-out by one: messages at the coordinator", "change_messages", lambda value: f"{value:,}"),
        ("scale-out by one: their bytes", "change_bytes", size),
        ("scale-out by one: processor of the coordinator", "change_coordinator_s", seconds),
        ("kill -9: a broken group is closed", "close_s", seconds),
        ("kill -9: until all are in a new group", "recover_s", seconds),
        ("heartbeats: share of the coordinator's core", "beats_share", lambda value: f"{100 * value:.2g} %"),
        ("event log: speeds, per hour", "log_bytes_per_hour", size),
        ("event log: one recovery", "recover_log_bytes", size),
    ]
    head = ("", *(f"E = {row['executors']:,}" for row in rows))
    return table(head, ((label, *(show(row[name]) for row in rows)) for label, name, show in lines))


def grouped() -> str:
    rows = options.kept("scale_costs")["rows"]
    lines = [
        ("gradients 26 MB, `tree`", "direct_s 26 MB", "two_level_s 26 MB"),
        ("seal", "seal_s", "seal_two_level_s"),
        ("groups are formed", "form_s", "form_two_level_s"),
        ("kill -9, until all are in a new group", "recover_s", "recover_two_level_s"),
    ]
    head = ("flat → two levels", *(f"E = {row['executors']:,}" for row in rows))
    cells = ((label, *(f"{seconds(row[flat])} → {seconds(row[two])}" for row in rows)) for label, flat, two in lines)
    return table(head, cells)


def goodput() -> str:
    result = options.kept("scale_goodput")
    sizes = (100, 1_000, 3_000, 10_000)
    head = ("", *(f"E = {e:,}" for e in sizes))

    def cells(system: str) -> Iterator[str]:
        for executors in sizes:
            found = [
                row["goodput"] for row in result["rows"] if (row["system"], row["executors"]) == (system, executors)
            ]
            yield " / ".join(f"{100 * value:.2f}" for value in found)

    systems = dict.fromkeys(row["system"] for row in result["rows"])
    return table(head, ((system, *cells(system)) for system in systems))


TABLES = {"constants": constants, "costs": costs, "grouped": grouped, "goodput": goodput}


def page(text: str) -> str:
    return filled(text, TABLES)


if __name__ == "__main__":
    sys.exit(rewrite(PAGE, TABLES))
