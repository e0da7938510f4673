"""Runs `pip install` and says all the while what it does: each package with its size, then how many are unpacked.

Started by scripts/setup with the Python of .venv: `install.py PHASE ARGUMENT...`; arguments go to pip. Lines are plain;
on a terminal, the count of unpacked packages stays on one line. Needs nothing but pip. Exit code and errors are pip's.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
SITE = Path(sysconfig.get_paths()["purelib"])
#: a line at least so often while packages are unpacked
EVERY_S = 5.0
_FILE = re.compile(
    r"(?:Downloading|Using cached|Processing) (\S+\.(?:whl|tar\.gz))(?: \(([\d.]+ [kMG]?B)\))?(?: \(from .*\))?$"
)


def main() -> int:
    phase, *arguments = sys.argv[1:]
    begun = time.monotonic()
    print(f"setup: {phase}", flush=True)
    pip = subprocess.Popen([*PIP, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert pip.stdout is not None
    lines: list[str] = []
    done = threading.Event()
    watcher: threading.Thread | None = None
    for line in pip.stdout:
        line = line.strip()
        lines.append(line)
        if what := package(line):
            print(f"setup:   {what}", flush=True)
        elif line.startswith("Installing collected packages:"):
            total = line.count(",") + 1
            watcher = threading.Thread(target=_watch, args=(total, time.monotonic(), done), daemon=True)
            watcher.start()
    code = pip.wait()
    done.set()
    if watcher is not None:
        watcher.join()
    if code != 0:
        print("\n".join(lines[-30:]), file=sys.stderr)
        print(f"setup: pip ended with exit code {code}; its last lines are above", file=sys.stderr)
        return code
    print(f"setup: {phase}: {time.monotonic() - begun:.0f} s", flush=True)
    return 0


def package(line: str) -> str:
    """Name, version and size of the package that pip has just got, by its line; empty for any other line."""
    found = _FILE.match(line)
    if not found:
        return ""
    path, size = Path(found[1]), found[2]
    if size is None and path.is_file():
        size = f"{path.stat().st_size / 1e6:.1f} MB"
    return " ".join(path.name.split("-")[:2]) + (f", {size}" if size else "")


def _watch(total: int, begun: float, done: threading.Event) -> None:
    """How many packages have been unpacked since, every few seconds."""
    before, live, said = time.time(), sys.stdout.isatty(), begun
    while not done.wait(0.5):
        now = time.monotonic()
        if live or now - said >= EVERY_S:
            count = min(total, sum(entry.stat().st_mtime >= before for entry in SITE.glob("*.dist-info")))
            text = f"setup:   {count} of {total} unpacked, {now - begun:.0f} s"
            print(f"\r{text}" if live else text, end="" if live else "\n", flush=True)
            said = now
    if live:
        print(f"\rsetup:   {total} of {total} unpacked, {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
