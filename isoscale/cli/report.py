"""`isoscale report`: what a run's log tells, as a page, a picture or JSON."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from isoscale.analysis.promises import Verdict
from isoscale.analysis.words import subtitle, title
from isoscale.cli.promises import promises_table, verdict_of
from isoscale.errors import UserError
from isoscale.protocol.events import read_events
from isoscale.protocol.files import read_small_json
from isoscale.timelines.timeline import Timeline, as_json, jobs_of, timeline

__all__ = ["report"]

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Directory of a run, or an event log.", show_default=False)
]
OutFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Write only this: .html, .png, .svg or .json.  \\[default: DIR/report.html and DIR/report.png]",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the timeline as one JSON object; write no file.")]

_LOG = "events.jsonl"
_FORMS = (".html", ".png", ".svg", ".json")
#: each job is a section with a picture; a page with hundreds would not open
_MAX_JOBS = 20


def report(directory: Directory, out: OutFile = None, as_json_: AsJson = False) -> None:
    """Show where the logical workers of a run lived, its rescales, faults, loss, and whether it kept its promises."""
    if out is not None and (out.suffix not in _FORMS or as_json_):
        problem = "a file beside --json, which prints" if as_json_ else "unknown sort of file"
        raise UserError(field="--out", value=out, problem=problem, remedy=f"give a name with {', '.join(_FORMS)}")
    log = _log_of(directory)
    shown, verdicts, left_out = _timelines(log)
    if as_json_:
        typer.echo(_as_text(shown, verdicts, left_out))
        return
    home = log.parent
    profile = _profile(home)
    wanted = [out] if out is not None else [home / "report.html", home / "report.png"]
    for path in wanted:
        _write(path, _contents(path.suffix, shown, verdicts, left_out, profile))
    console = Console(soft_wrap=True)
    if shown:
        console.print(f"{title(shown[0])}  ({subtitle(shown[0])})", highlight=False, markup=False)
        if verdicts[0] is not None:
            console.print(promises_table(verdicts[0], shown[0].start), soft_wrap=False)
    for path in wanted:
        console.print(f"report {os.path.relpath(path)}", highlight=False, markup=False)


def _log_of(directory: Path) -> Path:
    log = directory if directory.is_file() else directory / _LOG
    if not log.is_file():
        problem = f"no {_LOG} in it" if directory.is_dir() else "no such directory"
        raise UserError(field="DIR", value=directory, problem=problem, remedy="give the --out of a run")
    return log


def _timelines(log: Path) -> tuple[list[Timeline], list[Verdict | None], int]:
    """One timeline per job with what became of its promises, and how many jobs were left out."""
    try:
        events = list(read_events(log))
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read ({error})"
        raise UserError(field="DIR", value=log, problem=problem, remedy="give the --out of a run") from None
    if not events and (log.name != _LOG or log.stat().st_size):  # a run that has just begun has an empty log
        problem = "holds no event, so it is no event log"
        raise UserError(field="DIR", value=log, problem=problem, remedy=f"give the --out of a run, or its {_LOG}")
    jobs = jobs_of(events)
    if len(jobs) > 1:
        groups: dict[str, list[dict[str, Any]]] = {job: [] for job in jobs}
        for event in events:
            if event.get("job") is not None:
                groups[str(event["job"])].append(event)
        shown = [timeline(groups[job], job=job) for job in jobs[:_MAX_JOBS]]
        return shown, [None] * len(shown), len(jobs) - len(shown)
    name, workers = _job_of(log.parent)
    job = jobs[0] if jobs else name or log.parent.resolve().name
    found = timeline(events, job=job, num_logical_workers=workers, directory=str(log.parent.resolve()))
    # A simulated job promises nothing, and before the first event there is nothing to keep.
    judged = not found.simulated and found.state != "empty"
    return [found], [verdict_of(events, log.parent) if judged else None], 0


def _job_of(home: Path) -> tuple[str, int | None]:
    """The script's name and the number of logical workers, as far as a summary tells: an old log lacks both."""
    job = _read_json(home / "summary.json").get("job")
    if not isinstance(job, Mapping):
        return "", None
    script, workers = job.get("script"), job.get("workers")
    return Path(script).name if isinstance(script, str) else "", workers if isinstance(workers, int) else None


def _profile(home: Path) -> bytes:
    from isoscale.analysis.figures import render
    from isoscale.analysis.profile_figure import draw_profile

    try:
        return render(draw_profile(_read_json(home / "profile.json")))
    except UserError:  # a run need not have a profile
        return b""


def _contents(
    suffix: str, shown: list[Timeline], verdicts: list[Verdict | None], left_out: int, profile: bytes
) -> bytes:
    # Imported here: --json needs no drawing.
    from isoscale.analysis.figures import draw_timeline, render
    from isoscale.analysis.report import page

    if suffix == ".html":
        return page(shown, verdicts=verdicts, jobs_left_out=left_out, profile_png=profile).encode()
    if suffix == ".json":
        return (_as_text(shown, verdicts, left_out) + "\n").encode()
    return render(draw_timeline(shown[0]), "svg" if suffix == ".svg" else "png")


def _as_text(shown: list[Timeline], verdicts: list[Verdict | None], left_out: int) -> str:
    """One object; of a log with several jobs, one with all of them."""
    if len(shown) == 1:
        promises = verdicts[0].as_json() if verdicts[0] is not None else None
        return json.dumps({**as_json(shown[0]), "promises": promises}, allow_nan=False)
    jobs = {"format": 1, "jobs": [as_json(one) for one in shown], "jobs_left_out": left_out}
    return json.dumps(jobs, allow_nan=False)


def _write(path: Path, contents: bytes) -> None:
    """Whole or not at all: a browser may reload the page of a run that goes on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(contents)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        problem = f"cannot be written ({error.strerror})"
        raise UserError(field="--out", value=path, problem=problem, remedy="give another FILE") from None


def _read_json(path: Path) -> dict[str, object]:
    try:
        value = read_small_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
