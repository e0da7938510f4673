"""How many devices jobs ask for, counted by jobs and by device time (Helios Fig. 6)."""

from __future__ import annotations

import numpy as np

from isoscale.analysis.study.finding import Finding, Table, amount, hours, percent
from isoscale.analysis.study.trace import SIZES, Trace

__all__ = ["sizes"]


def sizes(trace: Trace) -> Finding:
    jobs, device_s = trace.jobs, trace.device_s
    with_devices = jobs.devices > 0
    total_s, total = float(device_s[with_devices].sum()), int(with_devices.sum())
    figures: dict[str, dict[str, object]] = {}
    for size, _, _ in SIZES:
        rows = jobs.of_size(size)
        figures[size] = {"jobs": int(rows.sum()), "device_s": float(device_s[rows].sum())}
    values, counts = np.unique(np.ceil(jobs.devices[with_devices]).astype(np.int64), return_counts=True)
    exact = {str(value): count for value, count in zip(values.tolist(), counts.tolist(), strict=True)}
    missing = {} if total else {"sizes": "devices of a job"}
    rows_ = [
        [
            size,
            amount(float(str(one["jobs"]))),
            percent(float(str(one["jobs"])) / total if total else None),
            hours(float(str(one["device_s"]))),
            percent(float(str(one["device_s"])) / total_s if total_s else None),
        ]
        for size, one in figures.items()
        if one["jobs"]
    ]
    large = float(str(figures[">8"]["device_s"])) / total_s if total_s else None
    return Finding(
        key="sizes",
        title="Sizes",
        figures={
            "sizes": {"classes": figures, "exact": exact, "without_devices": int((~with_devices).sum())},
        },
        tables=[
            Table(
                title="Devices asked for",
                columns=("devices", "jobs", "of jobs", "device-hours", "of device time"),
                rows=rows_,
            )
        ],
        says=f"Jobs of more than 8 devices take {percent(large)} of the device time." if total_s else "",
        missing=missing,
    )
