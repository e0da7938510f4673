"""The command line: parse, check, call, display. Every command is in the module of its name, or in `live_job`.

Errors of the user's making print one line that names the field, the value and the remedy, and exit
with the error's code; `--debug` shows the traceback instead.
"""

from __future__ import annotations

import gc

__all__ = ["main"]


def main() -> None:
    gc.disable()  # all that imports make stays: `app` turns it on again
    from isoscale.cli.app import app

    app()
