"""How a rank of the reference ended, as it writes it down for `runtime.tools.verify`. Torch-free."""

from __future__ import annotations

from pathlib import Path

import msgspec

__all__ = ["Outcome", "outcome_path"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    ok: bool
    #: of one that came to its end
    step: int = 0
    digest: str = ""
    #: of one that failed: when (unix seconds), and with what; the traceback is "" for errors that explain themselves
    t: float = 0.0
    summary: str = ""
    traceback: str = ""


def outcome_path(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank}.outcome.json"
