"""Philly's monitors: samples of devices, processors and memory by the minute, joined with the jobs that held devices.

`cluster_gpu_util`: time, machineId, gpu0_util ... gpu7_util and a trailing comma; `NA` where a device was offline.
`cluster_cpu_util`: time, machine_id, cpu_util. `cluster_mem_util`: time, machine_id, mem_total, mem_free. Streams:
memory grows with attempts and hours, not with samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from isoscale import limits
from isoscale.analysis.study.join import Joiner
from isoscale.analysis.study.readers.blocks import MISSING, Block, Ints, blocks
from isoscale.analysis.study.readers.times import NOTHING, seconds
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.sketch import SCALE, Utilisation
from isoscale.analysis.study.trace import Trace

__all__ = ["read_monitors"]

_FULL = 100 * SCALE
_TIME, _MACHINE = 0, 1

#: takes times, machine codes and numbers (lines x columns) of the lines of one block that are whole
_Take = Callable[[Ints, Ints, Ints], None]


def read_monitors(
    trace: Trace, devices: Path | None, processors: Path | None, memory: Path | None, reading: Reading
) -> Utilisation:
    """Whichever of the three files there are."""
    join = Joiner(trace)
    if devices is not None:
        _read(devices, reading, join, _percents, join.add)
    if processors is not None:
        _read(processors, reading, join, _percents, lambda t, m, v: join.add_host(0, v.ravel()))
    if memory is not None:
        _read(memory, reading, join, _sizes, lambda t, m, v: join.add_host(1, _used(v)))
    return join.utilisation()


def _read(path: Path, reading: Reading, join: Joiner, fits: Callable[[Ints], np.ndarray], take: _Take) -> None:
    header: list[str] = []
    for block in blocks(path, reading):
        skipped = 0
        if not header:
            header = [name.strip() for name in block.text(0).rstrip(",").split(",")]
            skipped = 1
            if len(header) < 3 or _is_time(header[0]):
                # No header: the published layout.
                header, skipped = [f"column {number}" for number in range(len(header))], 0
        _take_block(path, block, header, skipped, reading, join, fits, take)


def _take_block(
    path: Path,
    block: Block,
    header: Sequence[str],
    skipped: int,
    reading: Reading,
    join: Joiner,
    fits: Callable[[Ints], np.ndarray],
    take: _Take,
) -> None:
    found, odd = block.fields(len(header))
    times, good = block.times(found.starts[:, _TIME], found.ends[:, _TIME])
    values, readable = block.numbers(found.starts[:, 2:], found.ends[:, 2:])
    good &= readable.all(axis=1) & fits(values)
    good &= found.ends[:, _MACHINE] > found.starts[:, _MACHINE]
    good[: int(np.searchsorted(found.lines, skipped))] = False
    names, which = block.words(found.starts[good, _MACHINE], found.ends[good, _MACHINE])
    codes = np.array([join.machine(name) for name in names], dtype=np.int64)
    _deliver(times[good], codes[which], values[good], reading, take)
    reading.read(path, int(np.count_nonzero(good)))
    slow = [line for line in sorted([*found.lines[~good].tolist(), *odd.tolist()]) if line >= skipped]
    for line in slow:
        reading.read(path)
        row = _one(path, block, line, header, reading, fits)
        if row is not None:
            at, name, numbers = row
            one = np.array([numbers], dtype=np.int64)
            _deliver(np.array([at]), np.array([join.machine(name)]), one, reading, take)


def _deliver(times: Ints, machines: Ints, values: Ints, reading: Reading, take: _Take) -> None:
    if reading.windowed:
        inside = (times >= reading.begin_s) & (times < reading.end_s)
        reading.leave_out("samples outside the window", int(np.count_nonzero(~inside)))
        times, machines, values = times[inside], machines[inside], values[inside]
    if len(times):
        take(times, machines, values)


def _one(
    path: Path, block: Block, line: int, header: Sequence[str], reading: Reading, fits: Callable[[Ints], np.ndarray]
) -> tuple[int, str, list[int]] | None:
    """A line that did not look as usual, field by field; None if it cannot be used."""
    number = block.first_line + line
    fields = [field.strip() for field in block.text(line).split(",")]
    if len(fields) == len(header) + 1 and not fields[-1]:
        fields.pop()
    if len(fields) != len(header):
        reading.bad(path, number, "line", block.text(line), f"has {len(fields)} fields, not {len(header)}")
        return None
    try:
        at = seconds(fields[_TIME])
    except ValueError:
        at = math.nan
    if math.isnan(at):
        reading.bad(path, number, header[_TIME], fields[_TIME], "is not a time")
        return None
    if not fields[_MACHINE]:
        reading.bad(path, number, header[_MACHINE], "", "is empty")
        return None
    numbers = []
    for name, text in zip(header[2:], fields[2:], strict=True):
        if text in NOTHING:
            numbers.append(MISSING)
        elif limits.is_decimal(text) and 0 <= float(text) <= limits.MAX_NUMBER / SCALE:
            numbers.append(int(float(text) * SCALE))
        else:
            reading.bad(path, number, name, text, "is not a number of at least 0")
            return None
    if not fits(np.array([numbers], dtype=np.int64))[0]:
        # The columns that do not fit by themselves; if all do, they do not fit together.
        alone = np.full((len(numbers), len(numbers)), MISSING, dtype=np.int64)
        np.fill_diagonal(alone, numbers)
        wrong = np.flatnonzero(~fits(alone)).tolist() or list(range(len(numbers)))
        names, texts = (",".join(columns[2 + place] for place in wrong) for columns in (header, fields))
        reading.bad(path, number, names, texts, "is out of range")
        return None
    return int(at), fields[_MACHINE], numbers


def _percents(values: Ints) -> np.ndarray:
    return np.asarray((values <= _FULL).all(axis=1))


def _sizes(values: Ints) -> np.ndarray:
    """Total, then free, which is not more; or one of them is missing."""
    return np.asarray((values == MISSING).any(axis=1) | ((values[:, 0] > 0) & (values[:, 1] <= values[:, 0])))


def _used(values: Ints) -> Ints:
    """Thousandths of a percent of memory in use."""
    known = values[(values != MISSING).all(axis=1)]
    used: Ints = (known[:, 0] - known[:, 1]) * _FULL // known[:, 0]
    return used


def _is_time(text: str) -> bool:
    try:
        return not math.isnan(seconds(text))
    except ValueError:
        return False
