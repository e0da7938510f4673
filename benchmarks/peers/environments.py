"""Virtual environments of the peers, outside the repository, made once.

torch comes first and alone, from wherever pip is set up to find it; torchft then under a constraints file, because its
own requirement would let pip replace torch. torchrun needs no environment: it is part of torch, so it uses ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TORCH, TORCHFT = "torch==2.13.0", "torchft==0.2.0"
CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isoscale-benchmarks"


def is_made(cache: Path) -> bool:
    """Whether torchft's environment is there."""
    return (_place(cache) / ".whole").exists()


def torchft_environment(cache: Path) -> Path:
    """Its `bin` directory; installed at the first call, which needs a package index."""
    place = _place(cache)
    stamp = place / ".whole"
    if not stamp.exists():
        print(f"making {place}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        constraints = cache / "constraints.txt"
        constraints.write_text(f"{TORCH}\n{_pinned('numpy')}\n")
        pip = ["-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-input"]
        # numpy too: torch warns without it, and the data loader's workers seed it.
        for packages in ([TORCH], ["-c", str(constraints), TORCHFT, "numpy"]):
            subprocess.run([place / "bin" / "python", *pip, *packages], check=True)
        stamp.touch()
    version = subprocess.run(
        [place / "bin" / "python", "-c", "import torch; print(torch.__version__)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    if version.partition("+")[0] != TORCH.partition("==")[2]:
        raise RuntimeError(f"{place} has torch {version}, wanted {TORCH}: remove it and run again")
    return place / "bin"


def _place(cache: Path) -> Path:
    return cache / TORCHFT.replace("==", "-")


def _pinned(package: str) -> str:
    return next(line.strip() for line in CONSTRAINTS.read_text().splitlines() if line.startswith(f"{package}=="))
