"""The model of docs/scale.md: seconds of a step's exchange, a seal, a change and a recovery on E executors.

Pure. A message costs its sender and its receiver processor time and arrives after a latency; bytes go at a rate.
Nothing is said of switches that are shared, of losses or of stragglers: figures are what is left when all that is well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isoscale.core.reduction.orders import ring_chunks

#: assumed: one way between two machines of a data centre, without the ends' own work
WIRE_S = 10e-6
#: assumed: what a machine's network gives one executor, 25 Gbit/s
WIRE_BYTES_PER_S = 3.1e9
#: DDP's buckets: a small first one, then these
FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20
#: streams of Python, NumPy and torch: what a newcomer gets of each logical worker
WHOLE_CONTEXT_BYTES = 2 * 2_500 + 5_056


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Seconds, and bytes per second; measured unless said otherwise."""

    #: processor time of both ends for one message between executors
    message_s: float
    #: latency of such a message: the wire, and the ends' work
    alpha_s: float
    bytes_per_s: float
    #: per connection and member, of forming a group
    connection_s: float
    #: per connection, of giving one up: gloo's loop closes one a tick
    close_s: float
    store_get_s: float
    #: what each member leaves in the store: so much, and so much for each member
    store_base_bytes: float
    store_member_bytes: float
    #: the coordinator's processor, per message and byte
    in_s: float
    in_byte_s: float
    out_s: float
    out_byte_s: float
    beat_s: float
    context_s: float
    context_bytes: float
    pack_bytes_per_s: float
    #: by executors: seconds of one seal's own work, of a watch, of reading an order
    seal_s: Mapping[int, float]
    seal_bytes: Mapping[int, float]
    watch_s: Mapping[int, float]
    order_decode_s: Mapping[int, float]

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Constants:
        """From the result of `constants`."""
        groups, socket, rows = kept["groups"], kept["socket"], kept["rows"]
        one, other = groups["groups"][-2:]
        a, b = (row["store_bytes"] / row["members"] for row in (one, other))
        per_member = (b - a) / (other["members"] - one["members"])
        small, large = socket["order_small_bytes"], socket["order_large_bytes"]
        message_s = groups["short_message_processor_s"]
        return cls(
            message_s=message_s,
            alpha_s=WIRE_S + message_s,
            bytes_per_s=min(WIRE_BYTES_PER_S, groups["loopback_bytes_per_s"]),
            connection_s=other["processor_s_per_connection"],
            close_s=other["break_s"] / (other["members"] - 1),
            store_get_s=groups["store_get_s"],
            store_base_bytes=b - per_member * other["members"],
            store_member_bytes=per_member,
            in_s=socket["sealed_small_s"],
            in_byte_s=max(0.0, socket["sealed_large_s"] - socket["sealed_small_s"]) / socket["sealed_large_bytes"],
            out_s=socket["order_small_s"],
            out_byte_s=max(0.0, socket["order_large_s"] - socket["order_small_s"]) / (large - small),
            beat_s=socket["beat_s"],
            context_s=rows[-1]["context_s_each"],
            context_bytes=rows[-1]["context_bytes_each"],
            pack_bytes_per_s=kept["pack_bytes_per_s"],
            **{
                name: {row["executors"]: row[name] for row in rows}
                for name in ("seal_s", "seal_bytes", "watch_s", "order_decode_s")
            },
        )


def buckets(gradient_bytes: float) -> int:
    rest = max(0.0, gradient_bytes - FIRST_BUCKET_BYTES)
    return 1 + int(-(-rest // BUCKET_BYTES))


def volume_s(c: Constants, executors: int, num_bytes: float) -> float:
    """Every byte is sent once to be summed and once as a sum, whoever does it in which order."""
    return 2 * num_bytes * (executors - 1) / executors / c.bytes_per_s


def ring_s(c: Constants, executors: int, gradient_bytes: float) -> float:
    """gloo's own all-reduce, which order `ddp` is: a chunk goes around, twice, bucket by bucket."""
    return buckets(gradient_bytes) * 2 * (executors - 1) * c.alpha_s + volume_s(c, executors, gradient_bytes)


def direct_s(c: Constants, executors: int, gradient_bytes: float) -> float:
    """As order `tree` is exchanged now: a slice from everybody to everybody, and its sum back. Little latency, many
    messages."""
    each = 2 * c.alpha_s + 2 * (executors - 1) * c.message_s
    return buckets(gradient_bytes) * each + volume_s(c, executors, gradient_bytes)


def two_level_s(c: Constants, executors: int, gradient_bytes: float) -> float:
    """Not built: direct within groups of about the square root of E, then among those of equal place in all groups.
    With order `tree` groups that are subtrees give the same bits."""
    group = around_root(executors)
    messages = 2 * (group - 1) + 2 * (-(-executors // group) - 1)
    return buckets(gradient_bytes) * (4 * c.alpha_s + messages * c.message_s) + 2 * volume_s(c, group, gradient_bytes)


def around_root(executors: int) -> int:
    """A power of two, so that a group is a subtree."""
    return 1 << max(1, round(executors**0.5 - 1).bit_length())


def seal_s(c: Constants, executors: int) -> float:
    """One small all-reduce around the ring, and each executor's own work."""
    return 2 * (executors - 1) * c.alpha_s + 2 * c.seal_bytes[executors] / c.bytes_per_s + c.seal_s[executors]


def seal_two_level_s(c: Constants, executors: int) -> float:
    """Not built: to the first of a group, among those, and back, with the header alone: values of logical workers are
    combined on the way by the order of their ranks."""
    group = around_root(executors)
    others = group - 1 + -(-executors // group) - 1
    return 4 * c.alpha_s + 2 * others * c.message_s + 2 * c.seal_bytes[executors] / c.bytes_per_s + c.seal_s[executors]


def contexts_s(c: Constants, executors: int) -> float:
    """What each of E logical workers' turns changed, to everybody, around the ring, and taken over."""
    received = executors * c.context_bytes
    return (executors - 1) * c.alpha_s + received / c.bytes_per_s + executors * c.context_s


def form_s(c: Constants, executors: int) -> float:
    """A connection with everybody; all meet in one store, where each reads what everybody has left."""
    reads = executors * executors
    left = c.store_base_bytes + c.store_member_bytes * executors
    store = max(reads * c.store_get_s, reads * left / c.bytes_per_s)
    return max(store, (executors - 1) * c.connection_s)


def form_two_level_s(c: Constants, executors: int) -> float:
    """Not built: a group and the others of equal place, each with a store of its own."""
    group = around_root(executors)
    return form_s(c, group) + form_s(c, -(-executors // group))


def coordinator_s(c: Constants, traffic: Mapping[str, Any]) -> float:
    """Processor seconds of one section of `traffic`. Encoding is part of sending."""
    incoming = traffic["messages_in"] * c.in_s + traffic["bytes_in"] * c.in_byte_s
    outgoing = traffic["messages_out"] * c.out_s + traffic["bytes_out"] * c.out_byte_s
    return float(traffic["decide_s"] + incoming + outgoing)


def hand_over_s(c: Constants, executors: int, state_bytes: float, newcomers: int = 1) -> float:
    """The job's state and every logical worker's context, packed once and sent; those who stay share newcomers."""
    whole = state_bytes + executors * WHOLE_CONTEXT_BYTES
    rounds = -(-newcomers // max(1, executors - newcomers))
    return whole / c.pack_bytes_per_s + rounds * whole / c.bytes_per_s


def ring_messages(num_logical_workers: int, bucket_bytes: int) -> int:
    """Messages of each executor for one bucket where it hosts several logical workers: two of each chunk."""
    return 2 * len(ring_chunks(bucket_bytes // 4, 4, num_logical_workers))
