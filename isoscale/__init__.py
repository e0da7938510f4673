"""Elastic PyTorch training that gives the same bits on any number of devices.

The public names are loaded on first use (PEP 562): importing `isoscale`, or one of its modules that need no
torch, imports neither torch nor NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isoscale.data.readers.iterable import iterable
    from isoscale.data.readers.lines import json_lines, text_lines
    from isoscale.data.readers.parquet import parquet_rows
    from isoscale.data.readers.rows import csv_rows
    from isoscale.data.readers.samples import samples
    from isoscale.data.readers.tar import tar_samples
    from isoscale.errors import (
        AuditError,
        CheckpointError,
        DeterminismError,
        ExecutorLostError,
        IsoscaleError,
        PositionError,
        StartError,
        TurnRuleError,
        UserCodeError,
        UserError,
    )
    from isoscale.runtime.launch import run
    from isoscale.runtime.training.job import Job
    from isoscale.runtime.training.on_main import MainRun, OnMain

__all__ = [
    "AuditError",
    "CheckpointError",
    "DeterminismError",
    "ExecutorLostError",
    "IsoscaleError",
    "Job",
    "MainRun",
    "OnMain",
    "PositionError",
    "StartError",
    "TurnRuleError",
    "UserCodeError",
    "UserError",
    "__version__",
    "csv_rows",
    "iterable",
    "json_lines",
    "parquet_rows",
    "run",
    "samples",
    "tar_samples",
    "text_lines",
]

__version__ = "0.1.0"

_MODULE_OF = {name: "isoscale.errors" for name in __all__ if name.endswith("Error")}
_MODULE_OF |= {"Job": "isoscale.runtime.training.job", "run": "isoscale.runtime.launch"}
_MODULE_OF |= dict.fromkeys(("MainRun", "OnMain"), "isoscale.runtime.training.on_main")
_MODULE_OF |= {
    "csv_rows": "isoscale.data.readers.rows",
    "iterable": "isoscale.data.readers.iterable",
    "json_lines": "isoscale.data.readers.lines",
    "parquet_rows": "isoscale.data.readers.parquet",
    "samples": "isoscale.data.readers.samples",
    "tar_samples": "isoscale.data.readers.tar",
    "text_lines": "isoscale.data.readers.lines",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
