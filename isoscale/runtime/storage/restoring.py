"""A run's directory made again from its storage, on a machine that has never seen it.

Everything that a coordinator needs to go on: job, token, events, who was there, and how it ended if it has. Checkpoints
stay where they are; executors get them from there. Frozen code is fetched by `runtime.code.fetching`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from isoscale.errors import UserError
from isoscale.protocol.files import write_json_atomic, write_text_atomic
from isoscale.runtime.storage import names
from isoscale.runtime.storage.client import Storage
from isoscale.runtime.storage.counting import View
from isoscale.runtime.storage.ledger import look, newest_result
from isoscale.runtime.storage.pieces import joined

__all__ = ["fetch_result", "put_result", "restore"]


def restore(storage: Storage, url: str, out: Path, warn: Callable[[str], None]) -> str:
    """Fill `out`, which is this run's alone; the digest of the job's code. Raises UserError."""
    try:
        view = look(storage, warn)
        job = _small(storage, view, names.JOB)
        if job is None:
            problem, remedy = "there is no run to go on with", "give the --storage of a run that began"
            raise UserError(field="URL", value=url, problem=problem, remedy=remedy)
        control, code = out / "control", out / "code"
        for directory in (control, code, out / "logs"):
            directory.mkdir(exist_ok=True)
        write_text_atomic(control / "token", storage.read(names.TOKEN, 4096).decode(errors="replace"), mode=0o600)
        # A summary is of a term that has ended: an older one says nothing of the newest.
        for name, place, oldest in ((names.EXECUTORS, control, 1), (names.IMPORTS, code, 1), (names.SUMMARY, out, 0)):
            data = _small(storage, view, name, oldest=oldest or view.term)
            if data is not None:
                write_text_atomic(place / name, data.decode())
        joined(storage, view.events, out / "events.jsonl")
        put_result(storage, out)
        write_text_atomic(control / "term", f"{view.term}\n")
        write_text_atomic(control / "job.json", job.decode())
        return str(json.loads(job)["spec"]["code"])
    except OSError as error:
        problem = f"the run cannot be read ({error.strerror or error})"
        raise UserError(field="URL", value=url, problem=problem, remedy="check address and credentials") from None
    except (ValueError, KeyError, TypeError) as error:
        problem = f"what it says of the job is damaged ({error})"
        raise UserError(field="URL", value=url, problem=problem, remedy="give another one") from None


def put_result(storage: Storage, out: Path) -> None:
    """The end of the job, if it has one, where a coordinator looks for it. Raises OSError."""
    result = newest_result(storage)
    if result is not None:
        fields = {"step": result.step, "digest": result.digest, "stop_reason": result.stop_reason}
        write_json_atomic(out / "control" / "result.json", {**fields, "unheard": result.unheard})


def fetch_result(storage: Storage, path: Path) -> bool:
    """What came out of the job, as a file here; whether there is any. Raises OSError."""
    result = newest_result(storage)
    if result is not None:
        storage.download(result.object, path, result.size, result.sha256)
    return result is not None


def _small(storage: Storage, view: View, name: str, *, oldest: int = 1) -> bytes | None:
    """As the newest term that has it says; a term that has just begun may not have written it yet."""
    for term in range(view.term, oldest - 1, -1):
        with contextlib.suppress(FileNotFoundError):
            return storage.read(names.of_term(term, name))
    return None
