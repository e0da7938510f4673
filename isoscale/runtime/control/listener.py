"""A listening socket through which only so many strangers come at a time.

Between `accept` and the token a connection costs a descriptor and some memory, and nobody knows whose it is. Beyond
the limit the oldest such connection is ended: whoever has the token shows it within milliseconds, so the oldest is
the one least likely to. Counts below TLS, whose handshake can be held up just as well.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from typing import Any

from isoscale.errors import UserError

__all__ = ["Gate", "listening_socket"]


class Gate(socket.socket):
    """Set `limit` before it listens."""

    limit: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._strangers: dict[int, socket.socket] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        self._strangers.pop(connection.fileno(), None)  # its number was another one's
        self._strangers[connection.fileno()] = connection
        if len(self._strangers) > self.limit:
            self._strangers = {number: one for number, one in self._strangers.items() if one.fileno() == number}
        if len(self._strangers) > self.limit:
            with contextlib.suppress(OSError):
                self._strangers.pop(next(iter(self._strangers))).shutdown(socket.SHUT_RDWR)
        return connection, address

    def admit(self, number: int) -> None:
        """The connection with this descriptor has shown the token."""
        self._strangers.pop(number, None)


def listening_socket(host: str, port: int, limit: int) -> Gate:
    """Raises UserError if this machine cannot listen there."""
    if _is_wildcard(host):
        raise UserError(
            field="--listen",
            value=host,
            problem="names no address that executors could be told",
            remedy="give one address of this machine",
        )
    if not 0 <= port <= 65535:
        raise _no_port(port, "out of range")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        gate = Gate(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise _refused(host, error) from None
    gate.limit = limit
    try:
        gate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        gate.bind(address)
        gate.listen(128)
        gate.setblocking(False)
    except OSError as error:
        gate.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise _no_port(port, os.strerror(error.errno)) from None
        raise _refused(host, error) from None
    return gate


def _no_port(port: int, problem: str) -> UserError:
    return UserError(field="--port", value=port, problem=problem, remedy="give another one, or 0 for any")


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return not host.strip()


def _refused(host: str, error: Exception) -> UserError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UserError(
        field="--listen",
        value=host,
        problem=f"cannot listen there ({reason})",
        remedy="give an address of this machine",
    )
