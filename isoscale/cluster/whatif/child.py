"""The process that simulates: a question on its input, lines of progress and then the answers on its output.

    python -m isoscale.cluster.whatif.child

It is niced and bounded in memory and processor time; whoever started it ends it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time

import msgspec

from isoscale.cluster.whatif.answer import answer
from isoscale.cluster.whatif.question import Progress, Question
from isoscale.errors import IsoscaleError

__all__ = ["MAX_BYTES", "MAX_SECONDS", "main"]

MAX_SECONDS, MAX_BYTES = 60, 4 * 2**30
_TELL_EVERY_S = 0.2


def main() -> int:
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS + 5))
    with contextlib.suppress(ValueError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    told = 0.0

    def tell(share: float, doing: str) -> None:
        nonlocal told
        if time.monotonic() - told >= _TELL_EVERY_S:
            told = time.monotonic()
            _write(Progress(share=share, doing=doing))

    try:
        question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
        _write(Progress(share=1.0, answers=answer(question, tell), is_last=True))
    except (IsoscaleError, MemoryError) as error:
        _write(Progress(share=1.0, error=str(error) or "out of memory", is_last=True))
    return 0


def _write(progress: Progress) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(progress) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
