"""The coordinator of a job that a cluster service runs: `python -m isoscale.cli.coordinate DIR`.

Started by the service, which has written the job, its code and its grant into DIR. A person uses `isoscale jobs`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rich.console import Console

from isoscale.cli.outcome import report_failure, report_success
from isoscale.cli.progress import Progress
from isoscale.errors import IsoscaleError
from isoscale.runtime.control.home import EXIT_ELSEWHERE
from isoscale.runtime.coordinator.run import resume_job

__all__ = ["main"]


def main() -> int:
    directory = Path(sys.argv[1]).resolve()
    console = Console(highlight=False)
    try:
        with Progress(console) as progress:
            result = asyncio.run(resume_job(directory, progress, heed_signals=True))
    except IsoscaleError as error:
        print(f"isoscale: {error}", file=sys.stderr)
        return error.exit_code
    if result.exit_code in (0, EXIT_ELSEWHERE):
        report_success(console, result, 0, directory)
    elif not result.paused:
        report_failure(result, directory)
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
