"""Results of benchmarks as JSON: rows, the command, the date, the machine, and hashes of the code that they are about.

A benchmark that takes long keeps its rows as they come (`Rows`), in `.unfinished/` beside the result: a run that was
broken off goes on where it stopped, as long as nothing that it measures has changed. The result itself is written once
everything is there, so no page ever shows half of one.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.lib import processes, sources
from benchmarks.lib.options import Options

RESULTS = processes.ROOT / "benchmarks" / "results"
Row = dict[str, Any]
_BEGUN = time.monotonic()


def destination(name: str, options: Options | None) -> Path | None:
    """Where the result of this length goes; None if it is not kept."""
    if options is None:
        return RESULTS / f"{name}.json"
    if options.out is not None:
        return options.out.absolute()
    return RESULTS / f"{name}.json" if options.length == "full" else None


def unfinished(path: Path) -> Path:
    """Where rows of a result lie until it is whole."""
    return path.parent / ".unfinished" / path.name


def save(
    name: str,
    rows: Iterable[Any],
    options: Options | None = None,
    *,
    earlier_s: float = 0.0,
    whole: bool = True,
    **facts: Any,
) -> None:
    """One JSON file per benchmark, with the command that made it; nothing if this length keeps none.

    What is not the whole result goes to `unfinished`, and from there when the whole is written.
    """
    path = destination(name, options)
    if path is None:
        return
    made = {
        "benchmark": name,
        "command": processes.command(),
        "length": "full" if options is None else options.length,
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(earlier_s + time.monotonic() - _BEGUN),
        **machine(),
        "sources": sources.digests(processes.module()),
    }
    plain = [asdict(row) if is_dataclass(row) and not isinstance(row, type) else row for row in rows]
    _write(path if whole else unfinished(path), {**made, **facts, "rows": plain})
    if not whole:
        return
    unfinished(path).unlink(missing_ok=True)
    print(f"written {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}", flush=True)


def machine() -> dict[str, Any]:
    """Versions and the processor; nothing that names the machine."""
    import torch

    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }


def torch_version() -> str:
    """Without importing it, and without where it was built for."""
    return version("torch").partition("+")[0]


class Rows:
    """Rows of one result, each kept at once. A row is told from others by its values of `key`."""

    def __init__(self, name: str, options: Options, key: Sequence[str], **asked: Any) -> None:
        """`asked`: options that change what rows mean; rows of other answers are not taken up again."""
        self._name, self._options, self._key = name, options, tuple(key)
        path = destination(name, options)
        self._partial = unfinished(path) if path is not None else None
        self._header = {
            "asked": {"length": options.length, **asked},
            "sources": sources.digests(processes.module()),
            "torch": torch_version(),
        }
        self._rows: list[Row] = []
        self._earlier_s = 0.0
        self._take_up()

    def _take_up(self) -> None:
        if self._partial is None or not self._partial.exists():
            return
        found = json.loads(self._partial.read_text())
        # Through JSON: a tuple that was asked for comes back as a list.
        if {name: found.get(name) for name in self._header} == json.loads(json.dumps(self._header)):
            self._rows, self._earlier_s = found["rows"], found["seconds"]
            print(f"going on: {len(self._rows)} rows were kept by an earlier run ({self._partial.name})", flush=True)
        else:
            print("rows of an earlier run are of other code or options: measured anew", flush=True)

    @property
    def folder(self) -> Path | None:
        """For files that belong to unfinished rows; None if nothing is kept."""
        return None if self._partial is None else self._partial.with_suffix("")

    def all(self) -> list[Row]:
        return list(self._rows)

    def find(self, **key: Any) -> Row | None:
        assert set(key) == set(self._key), key
        return next((row for row in self._rows if all(row[name] == value for name, value in key.items())), None)

    def put(self, row: Row) -> None:
        self._rows.append(row)
        if self._partial is not None:
            seconds = round(self._earlier_s + time.monotonic() - _BEGUN)
            _write(self._partial, {**self._header, "seconds": seconds, "rows": self._rows})

    def finish(self, rows: Iterable[Any] | None = None, **facts: Any) -> None:
        """Everything is there: the result, in the order in which rows came or as given."""
        save(self._name, self._rows if rows is None else rows, self._options, earlier_s=self._earlier_s, **facts)
        if self._partial is not None:
            self._partial.unlink(missing_ok=True)
            if self.folder is not None and self.folder.is_dir():
                for path in self.folder.iterdir():
                    path.unlink()
                self.folder.rmdir()


def _write(path: Path, content: dict[str, Any]) -> None:
    """Never half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    partial.replace(path)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
