"""The command line that all benchmarks share: how long to measure, and where the result goes.

`--smoke` takes seconds and goes the whole way with tiny sizes; `--quick` takes a minute or two and shows about what
would come out; without either, everything is measured at full length. Only the last writes a kept result. `--out FILE`
writes the result of any length there, and nowhere else.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Literal, TypeVar

Length = Literal["smoke", "quick", "full"]
T = TypeVar("T")


class Options(argparse.Namespace):
    smoke: bool
    quick: bool
    out: Path | None

    @property
    def length(self) -> Length:
        return "smoke" if self.smoke else "quick" if self.quick else "full"

    def pick(self, *, smoke: T, quick: T, full: T) -> T:
        """What belongs to the length that was asked for."""
        return smoke if self.smoke else quick if self.quick else full


def parser(description: str | None) -> argparse.ArgumentParser:
    """With the shared options; a benchmark may add its own."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = found.add_mutually_exclusive_group()
    length.add_argument("--smoke", action="store_true", help="tiny sizes, seconds: does it run? Keeps nothing")
    length.add_argument("--quick", action="store_true", help="a minute or two; prints, keeps nothing")
    found.add_argument("--out", type=Path, metavar="FILE", help="write the result here, and nowhere else")
    return found


def parsed(made: argparse.ArgumentParser) -> Options:
    """The options of this process. Whatever ends it from now on, what it started is cleaned up; no traceback."""
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda number, _: sys.exit(128 + number))
    return made.parse_args(namespace=Options())


def options(description: str | None) -> Options:
    """Of a benchmark without options of its own."""
    return parsed(parser(description))
