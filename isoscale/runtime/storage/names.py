"""What the objects of a run are called in its storage. Pure.

    run.json                          somebody's run is here (made once)
    token                             the run's secret
    code/DIGEST/manifest.json         frozen code, with its archive beside it
    data/step-00000040-TAG.pt, .json  a checkpoint that an executor has written: counts only if a term says so
    results/step-00000080.json        the end of the job (made once), which names its .pt
    logs/executor-3-PID-000000.log    what executors of other machines print, in pieces
    terms/00000007/claim.json         a coordinator's right to this term (made once)
    terms/00000007/base.json          what of earlier terms it goes on with
    terms/00000007/step-00000040.json a checkpoint that counts
    terms/00000007/events-000000.jsonl, address.json, job.json, executors.json, imports.json, summary.json

A coordinator writes under its own term only, so one that was replaced and does not know it spoils nothing.
"""

from __future__ import annotations

import re

__all__ = [
    "ADDRESS",
    "EXECUTORS",
    "IMPORTS",
    "JOB",
    "RUN",
    "SUMMARY",
    "TERMS",
    "TOKEN",
    "base",
    "claim",
    "code",
    "data",
    "entry",
    "is_name",
    "of_term",
    "piece",
    "result",
    "step_of_data",
    "step_of_entry",
    "step_of_result",
    "term_of",
]

RUN, TOKEN, TERMS = "run.json", "token", "terms/"
#: of a term
ADDRESS, JOB, EXECUTORS, IMPORTS, SUMMARY = "address.json", "job.json", "executors.json", "imports.json", "summary.json"

_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_TERM = re.compile(r"terms/([0-9]{8,18})/(.+)")
_STEP = re.compile(r"step-([0-9]{8,18})\.json")
_DATA = re.compile(r"data/step-([0-9]{8,18})-.+")


def is_name(key: str) -> bool:
    """Whether it may be an object's name. Names come out of files that anybody may have written, and become paths."""
    return bool(_NAME.fullmatch(key)) and len(key) <= 800


def of_term(term: int, name: str) -> str:
    return f"{TERMS}{term:08d}/{name}"


def claim(term: int) -> str:
    return of_term(term, "claim.json")


def base(term: int) -> str:
    return of_term(term, "base.json")


def entry(term: int, step: int) -> str:
    return of_term(term, f"step-{step:08d}.json")


def piece(prefix: str, number: int, suffix: str) -> str:
    """Of a file that only grows: events of a term, or an executor's log."""
    return f"{prefix}-{number:06d}{suffix}"


def data(step: int, tag: str, suffix: str) -> str:
    return f"data/step-{step:08d}-{tag}{suffix}"


def code(digest: str, name: str) -> str:
    return f"code/{digest}/{name}"


def result(step: int, tag: str = "") -> str:
    """What says that the job has ended, or with a `tag` the file that it names."""
    return f"results/step-{step:08d}-{tag}.pt" if tag else f"results/step-{step:08d}.json"


def term_of(key: str) -> tuple[int, str] | None:
    """Term and name in it, of an object that belongs to one."""
    match = _TERM.fullmatch(key)
    return (int(match[1]), match[2]) if match is not None and of_term(int(match[1]), match[2]) == key else None


def step_of_entry(name: str) -> int | None:
    """Of a name in a term."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match is not None else None


def step_of_data(key: str) -> int | None:
    match = _DATA.fullmatch(key)
    return int(match[1]) if match is not None else None


def step_of_result(key: str) -> int | None:
    return step_of_entry(key.removeprefix("results/")) if key.startswith("results/") else None
