"""What went wrong with a checkpoint's file, in one line: an error of the disk or of torch becomes a CheckpointError."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from isoscale.errors import CheckpointError

__all__ = ["cannot"]


def cannot(what: Literal["write", "publish", "look for", "load"], path: Path, error: Exception) -> CheckpointError:
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        remedy = "free space on the disk and check its permissions, or begin anew in another --out"
    else:
        reason = _reason(str(error)) or type(error).__name__
        remedy = "keep tensors, numbers, strings, lists and dicts only" if what == "write" else "use another checkpoint"
    return CheckpointError(path=str(path), problem=f"cannot {what} it ({reason})", remedy=remedy)


def _reason(message: str) -> str:
    """The line of torch's that says what is wrong; the first one may be advice to load with `weights_only=False`."""
    _, _, specific = message.partition("WeightsUnpickler error:")
    return next(iter((specific or message).strip().splitlines()), "")
