"""The first words of an executor that nobody has started: may I join, and as whom?"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from isoscale.errors import UserError
from isoscale.protocol import messages as m
from isoscale.runtime.link import open_socket

__all__ = ["ask_to_join"]


def ask_to_join(url: str, token: str, kind: str, ca_file: Path | None) -> m.Welcome:
    """Raises UserError if there is no coordinator, or it says no."""
    try:
        with open_socket(f"{url.rstrip('/')}/join?kind={quote(kind)}", token, ca_file) as socket:
            frame = socket.recv(timeout=10)
            message = m.decode_from_coordinator(frame if isinstance(frame, bytes) else frame.encode())
            assert isinstance(message, m.Welcome)
            return message
    except UserError:
        raise
    except ConnectionClosed as error:
        reason = error.rcvd.reason if error.rcvd is not None else "it closed the connection"
        raise UserError(field="--join", value=url, problem=reason, remedy="see isoscale status") from None
    except InvalidStatus:
        raise UserError(
            field="--token-file", value="its token", problem="refused", remedy="give DIR/control/token of that run"
        ) from None
    except (OSError, WebSocketException, ValueError, TimeoutError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            field="--join",
            value=url,
            problem=f"no coordinator answers ({why})",
            remedy="give the address in DIR/control/coordinator.json of a job that runs",
        ) from None
