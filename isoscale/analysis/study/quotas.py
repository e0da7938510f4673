"""Shares of tenants from a table of the user's: what a job waits for depends on what its tenant may hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from isoscale.analysis.study.trace import Trace
from isoscale.errors import UserError
from isoscale.sim.traces.record import table

__all__ = ["read_quotas", "with_quotas"]


def read_quotas(path: Path) -> dict[str, float]:
    """`tenant,devices`, one tenant a line. Raises UserError."""
    try:
        is_there = path.is_file()
    except OSError:  # too long for a name
        is_there = False
    if not is_there:
        raise UserError(field="--quotas", value=path, problem="no such file", remedy="give a CSV with tenant,devices")
    try:
        return {row.text("tenant"): row.number("devices") for row in table(path, ("tenant", "devices"))}
    except UserError as error:
        raise UserError(
            field=f"--quotas {error.field}", value=error.value, problem=error.problem, remedy=error.remedy
        ) from None


def with_quotas(trace: Trace, quotas: Mapping[str, float]) -> Trace:
    return dataclasses.replace(trace, quotas=dict(quotas))
