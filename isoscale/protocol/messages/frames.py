"""Messages as bytes: one MessagePack frame each, and a decoder for each direction.

Sizes are bounded by `MAX_MESSAGE_BYTES`; a frame that does not decode is the peer's fault and ends its connection.
"""

from __future__ import annotations

import msgspec

from isoscale.protocol.messages.facts import Fact
from isoscale.protocol.messages.orders import FromCoordinator
from isoscale.protocol.messages.reports import Report
from isoscale.protocol.messages.requests import FromClient, Reply

__all__ = [
    "MAX_MESSAGE_BYTES",
    "FromExecutor",
    "decode_from_client",
    "decode_from_coordinator",
    "decode_from_executor",
    "decode_reply",
    "encode",
]

MAX_MESSAGE_BYTES = 4 * 2**20

FromExecutor = Report | Fact

_encoder = msgspec.msgpack.Encoder()
_from_coordinator: msgspec.msgpack.Decoder[FromCoordinator] = msgspec.msgpack.Decoder(FromCoordinator)
_from_executor: msgspec.msgpack.Decoder[FromExecutor] = msgspec.msgpack.Decoder(FromExecutor)
_from_client: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)
_reply: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(message: FromCoordinator | FromExecutor | FromClient | Reply) -> bytes:
    return _encoder.encode(message)


def decode_from_coordinator(frame: bytes) -> FromCoordinator:
    """Raises `msgspec.DecodeError` on anything but a whole, valid message."""
    return _from_coordinator.decode(frame)


def decode_from_executor(frame: bytes) -> FromExecutor:
    return _from_executor.decode(frame)


def decode_from_client(frame: bytes) -> FromClient:
    return _from_client.decode(frame)


def decode_reply(frame: bytes) -> Reply:
    return _reply.decode(frame)
