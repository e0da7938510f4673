"""Which formats can be read, how one is recognised, and opening what a user names: a path, a window, several policies.

A new source is one entry of FORMATS: a name, how to recognise it, a function from path to Trace.
"""

from __future__ import annotations

import calendar
import contextlib
import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from isoscale.analysis.study.readers import acme, helios, pai, philly, runs, service, simulated, trace_jobs
from isoscale.analysis.study.readers.events import LOG, is_log, is_simulated
from isoscale.analysis.study.readers.times import EPOCH
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.trace import Trace
from isoscale.errors import UserError
from isoscale.protocol.files import read_small_json
from isoscale.sim.builtin import BUILTIN
from isoscale.sim.traces import FORMATS as JOB_LISTS

__all__ = ["FORMATS", "Format", "Source", "open_trace", "sources"]

Read = Callable[[Path, Reading], Trace]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format: what it is, whether a path is of it, and how it is read."""

    words: str
    recognises: Callable[[Path], bool]
    read: Read


def _job_list(name: str) -> Read:
    return lambda path, reading: trace_jobs.read_trace_jobs(path, reading, name)


def _never(path: Path) -> bool:
    return False


#: the first that recognises a path is taken; job lists are told apart by their header
FORMATS: Mapping[str, Format] = {
    "isoscale-simulated": Format(
        words="the event log of a simulated policy", recognises=simulated.recognises, read=simulated.read_simulated
    ),
    "isoscale-service": Format(
        words="the STATE of a cluster service", recognises=service.recognises, read=service.read_service
    ),
    "isoscale-run": Format(
        words="a run's DIR, or a directory of such DIRs", recognises=runs.recognises, read=runs.read_runs
    ),
    "philly": Format(
        words="the published files of Philly, or its job log", recognises=philly.recognises, read=philly.read_philly
    ),
    "pai": Format(words="tables of Alibaba's PAI, 2020", recognises=pai.recognises, read=pai.read_pai),
    "acme": Format(words="a trace of Acme", recognises=acme.recognises, read=acme.read_acme),
    "helios": Format(words="a cluster of Helios", recognises=helios.recognises, read=helios.read_helios),
    "jobs": Format(
        words="a job list that simulate reads", recognises=trace_jobs.recognises, read=trace_jobs.read_trace_jobs
    ),
    **{
        name: Format(words=f"a job list of {name}", recognises=_never, read=_job_list(name))
        for name in JOB_LISTS
        if name not in ("philly-log", "isoscale-service")
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One thing to analyse: a path or a name, and a window of time."""

    text: str
    label: str
    path: Path | None
    begin_s: float = -float("inf")
    end_s: float = float("inf")


def sources(text: str) -> list[Source]:
    """What an argument names: `PATH`, `PATH@2017-10`, `PATH@2017-10-03..2017-10-20`.

    Of a simulation that is every policy, of Acme's directory every cluster.
    """
    if text in BUILTIN or (re.match(r"philly(:|$)", text) and not Path(text).exists()):
        return [Source(text=text, label=text, path=None)]
    path, begin_s, end_s = Path(text), -float("inf"), float("inf")
    if not _exists(path) and "@" in text:
        name, _, window = text.rpartition("@")
        path = Path(name)
        begin_s, end_s = _window(window, text)
    if not _exists(path):
        raise UserError(
            field="TRACE",
            value=text,
            problem="no such file or directory",
            remedy="give the path of a trace, or of a run",
        )
    window_label = text.rpartition("@")[2] if begin_s > -float("inf") else ""
    found = _policies(path) or acme.parts(path) or [path]
    return [
        Source(
            text=text,
            label=" ".join(filter(None, [one.name or one.resolve().name, window_label])),
            path=one,
            begin_s=begin_s,
            end_s=end_s,
        )
        for one in found
    ]


def open_trace(source: Source, reading: Reading, format: str = "auto") -> Trace:
    """Reads it. Raises UserError if no format fits, or nothing in it is a job."""
    reading.begin_s, reading.end_s = source.begin_s, source.end_s
    if format != "auto" and format not in FORMATS:
        raise UserError(
            field="--format", value=format, problem="unknown format", remedy=f"give auto or one of {', '.join(FORMATS)}"
        )
    if source.path is None:
        return trace_jobs.read_named(source.text, reading)
    name = _detected(source.path) if format == "auto" else format
    try:
        trace = FORMATS[name].read(source.path, reading)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise UserError(field="TRACE", value=source.path, problem=problem, remedy="give the path of a trace") from None
    if reading.windowed and trace.zero is None:
        raise UserError(
            field="TRACE",
            value=source.text,
            problem=f"the format {trace.format} has no dates, so nothing is in the window",
            remedy="leave out what follows @",
        )
    if not len(trace.jobs):
        bad = trace.account.num_malformed
        problem = "holds no job" + (f" that can be used; {bad:,} lines are malformed" if bad else "")
        if trace.account.first:
            problem += f", the first: {trace.account.first[0]}"
        raise UserError(field="TRACE", value=source.text, problem=problem, remedy="give a trace with jobs")
    return dataclasses.replace(trace, name=source.label)


def _detected(path: Path) -> str:
    for name, format in FORMATS.items():
        try:
            if format.recognises(path):
                return name
        except OSError:
            continue
    raise UserError(
        field="TRACE",
        value=path,
        problem="is of no known format",
        remedy=f"name it with --format: {', '.join(FORMATS)}",
    )


def _policies(path: Path) -> list[Path]:
    """Of the --out of a simulation, the logs of its policies, by name; not those that an earlier one left there."""
    details = path / "details.json"
    if not path.is_dir() or (path / LOG).is_file() or not details.is_file():
        return []
    logs = None
    with contextlib.suppress(OSError, ValueError, AttributeError):  # written before it named them, or too large
        logs = read_small_json(details).get("logs")
    children = (child for child in path.iterdir() if not isinstance(logs, list) or child.name in logs)
    return sorted(child for child in children if child.is_dir() and is_log(child) and is_simulated(child))


def _window(text: str, whole: str) -> tuple[float, float]:
    first, dots, last = text.partition("..")
    try:
        begin, after = _period(first)
        end = _period(last)[1] if dots else after
    except ValueError:
        begin = end = EPOCH
    if begin >= end:
        raise UserError(
            field="TRACE",
            value=whole,
            problem=f"neither a file nor a window: {text!r} is not a month, a day or FROM..TO",
            remedy="give, for example, TRACE@2017-10 or TRACE@2017-10-03..2017-10-20",
        )
    return (begin - EPOCH).total_seconds(), (end - EPOCH).total_seconds()


def _period(text: str) -> tuple[datetime, datetime]:
    """Begin and end of a month or a day."""
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}", text):
        begin = datetime.strptime(text, "%Y-%m")
        return begin, begin + timedelta(days=calendar.monthrange(begin.year, begin.month)[1])
    begin = datetime.strptime(text, "%Y-%m-%d")
    return begin, begin + timedelta(days=1)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # too long for a name
        return False
