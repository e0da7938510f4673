"""The end of a script as an event: with or without an error, for whoever has begun something that lasts as long.

Under isoscale's own launcher (`runtime.code.launch`) the error is the one that left the script. In a process that
Python itself started it is the one that was shown; a script that ends itself by `sys.exit` counts as one that ends.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from types import TracebackType

__all__ = ["at_script_end", "launched", "script_ended"]

_calls: list[Callable[[BaseException | None], object]] = []
_is_launched = False
_shown: list[BaseException] = []


def at_script_end(call: Callable[[BaseException | None], object]) -> None:
    """Call once when the script is over. The last one that was given is called first."""
    if not _is_launched and not _calls:
        previous = sys.excepthook

        def remember(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            _shown.append(error)
            previous(kind, error, trace)

        sys.excepthook = remember
        atexit.register(lambda: script_ended(_shown[0] if _shown else None))
    _calls.append(call)


def launched() -> None:
    """The launcher runs the script, and will say when it is over."""
    global _is_launched
    _is_launched = True


def script_ended(error: BaseException | None) -> None:
    """A `SystemExit` that says success is no error."""
    if isinstance(error, SystemExit) and not error.code:
        error = None
    while _calls:
        _calls.pop()(error)
