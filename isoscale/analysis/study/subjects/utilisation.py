"""How busy devices are while a job holds them, by status, size, spread and company (Philly Figs. 5, 6, its tables).

One sample is one device for one interval of the monitor. Sizes are those of the attempt. *Dedicated* means that a job
is on as few machines as eight devices each allow; *shared* that another job ran beside it for most of its time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from isoscale.analysis.study.finding import Finding, Table, amount
from isoscale.analysis.study.sketch import Utilisation
from isoscale.analysis.study.trace import SIZES, STATUSES, Trace

__all__ = ["chosen_groups", "host", "utilisation"]

_EXACT = (1, 4, 8, 16)
_DEVICES_OF_A_MACHINE = 8
Flags = NDArray[np.bool_]


def utilisation(trace: Trace) -> Finding:
    used = trace.utilisation
    title = "Use of devices"
    if used is None or not used.devices.counts.any():
        missing = {"utilisation": trace.lacking("utilisation", "samples of devices")}
        return Finding(key="utilisation", title=title, figures={"utilisation": {}}, missing=missing)
    attempts, statuses = trace.attempts, trace.jobs.status[trace.attempts.job]
    held = np.ones(len(attempts), dtype=np.bool_)
    sizes: dict[str, Flags] = {"all": attempts.devices > 0}
    sizes |= {name: (attempts.devices > low) & (attempts.devices <= high) for name, low, high in SIZES}
    exact = {str(size): attempts.devices == size for size in _EXACT}
    by_size = {size: _by_status(used, rows, statuses) for size, rows in sizes.items()}
    by_exact = {size: _by_status(used, rows, statuses) for size, rows in exact.items()}
    dedicated = {
        str(size): _figures(used, exact[str(size)] & (attempts.machines <= size // _DEVICES_OF_A_MACHINE))
        for size in (8, 16)
    }
    spread = {
        str(machines): _figures(used, exact["16"] & (attempts.machines == machines))
        for machines in np.unique(attempts.machines[exact["16"]]).tolist()
        if machines
    }
    company = {
        "alone on its machines": _figures(used, held & ~used.shared),
        "shared with other jobs": _figures(used, used.shared),
    }
    everything = used.devices.figures()
    figures = {
        "all": everything,
        "held": _figures(used, held),
        "nobody's": used.devices.figures(_only(used, 0)),
        "by_size": by_size,
        "by_devices": by_exact,
        "dedicated": dedicated,
        "by_machines_of_16": spread,
        "by_company": company,
        "cdf_by_status": {
            name: used.devices.cdf(chosen_groups(used, statuses == STATUSES.index(name)))
            for name in ("passed", "killed", "failed")
        },
        "cdf_by_size": {size: used.devices.cdf(chosen_groups(used, rows)) for size, rows in sizes.items()},
        "offline_samples": used.offline,
        "machines_that_only_the_monitor_knows": used.unknown_machines,
        "resolution_percent": 0.1,
        "exact": used.devices.inexact == 0,
        "by_hour": _hours(used),
    }
    tables = [
        _status_table("Use by size and status (mean percent)", by_size),
        _status_table("Use by exact number of devices and status (mean percent)", by_exact, brief=False),
        _table("Jobs of 16 devices by machines", "machines", spread, brief=False),
        _table("On as few machines as possible", "devices", dedicated, brief=False),
        _table("Alone or beside other jobs", "", company),
    ]
    mean = _figures(used, held)["mean"]
    return Finding(
        key="utilisation",
        title=title,
        figures={"utilisation": figures},
        tables=[table for table in tables if table.rows],
        says=f"A device that a job holds is {mean:.0f} % busy on average." if mean is not None else "",
    )


def host(trace: Trace) -> Finding:
    """Processors and memory of hosts (Philly Fig. 7)."""
    used = trace.utilisation
    names = ("processor", "memory")
    figures: dict[str, object] = {}
    rows: dict[str, dict[str, float | int | None]] = {}
    for group, name in enumerate(names):
        if used is not None and used.hosts.counts[group].any():
            only = np.arange(2) == group
            rows[name] = used.hosts.figures(only)
            figures[name] = {**rows[name], "cdf": used.hosts.cdf(only)}
    missing = {}
    if len(rows) < 2:
        absent = [name for name in names if name not in rows]
        missing["host." + ", ".join(absent) if rows else "host"] = trace.lacking("host", "samples of hosts")
    says = "; ".join(f"{name}s of hosts are {one['mean']:.0f} % used on average" for name, one in rows.items())
    return Finding(
        key="host",
        title="Hosts",
        figures={"host": figures},
        tables=[_table("Hosts", "", rows)] if rows else [],
        says=f"{says[:1].upper()}{says[1:]}.".replace("Memorys", "Memory").replace("memorys of hosts are", "memory is")
        if says
        else "",
        missing=missing,
    )


def chosen_groups(used: Utilisation, attempts: Flags) -> Flags:
    """Groups of samples of these attempts: a group is never split by what subjects ask for."""
    groups = np.zeros(len(used.devices.sums), dtype=np.bool_)
    groups[used.group_of_attempt[attempts]] = True
    return groups


def _figures(used: Utilisation, attempts: Flags) -> dict[str, float | int | None]:
    return used.devices.figures(chosen_groups(used, attempts))


def _only(used: Utilisation, group: int) -> Flags:
    only: Flags = np.arange(len(used.devices.sums)) == group
    return only


def _by_status(used: Utilisation, rows: Flags, statuses: NDArray[np.int64]) -> dict[str, dict[str, float | int | None]]:
    found = {name: _figures(used, rows & (statuses == STATUSES.index(name))) for name in ("passed", "killed", "failed")}
    return {**found, "all": _figures(used, rows)}


def _hours(used: Utilisation) -> dict[str, object]:
    with np.errstate(invalid="ignore", divide="ignore"):
        means = used.hour_sums / 1000.0 / used.hour_counts
    return {
        "first_s": used.first_hour * 3600,
        "mean": [None if np.isnan(mean) else round(float(mean), 3) for mean in means],
    }


def _status_table(
    title: str, figures: Mapping[str, Mapping[str, Mapping[str, float | int | None]]], *, brief: bool = True
) -> Table:
    rows = [
        [size, *(_mean(one) for one in by_status.values()), amount(by_status["all"]["count"])]
        for size, by_status in figures.items()
        if by_status["all"]["count"]
    ]
    return Table(
        title=title, columns=("devices", "passed", "killed", "failed", "all", "samples"), rows=rows, brief=brief
    )


def _table(
    title: str, name: str, figures: Mapping[str, Mapping[str, float | int | None]], *, brief: bool = True
) -> Table:
    rows = [
        [key, _mean(one), *(_percent(one[level]) for level in ("p50", "p90", "p95")), amount(one["count"])]
        for key, one in figures.items()
        if one["count"]
    ]
    return Table(title=title, columns=(name, "mean", "median", "p90", "p95", "samples"), rows=rows, brief=brief)


def _mean(figures: Mapping[str, float | int | None]) -> str:
    return _percent(figures["mean"])


def _percent(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.1f} %"
