"""The coordinator of a job whose devices are granted, as a service starts one: `granted_run.py DIR SCRIPT [ARGS]`.

Goes on with the run in DIR if there is one.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from isoscale.kinds import DeviceSet
from isoscale.runtime.coordinator.run import resume_job, run_job
from isoscale.types import JobSpec, Settings


class Nobody:
    """Watches nothing."""

    def on_output(self, line: str) -> bool:
        return True

    def on_begin(self, num_executors: int) -> None: ...

    def on_step(self, step: Any, num_executors: int) -> None: ...

    def on_log(self, logged: Any) -> None: ...

    def on_event(self, event: str, fields: dict[str, Any]) -> None: ...


def main(directory: Path, script: str, arguments: tuple[str, ...]) -> int:
    if (directory / "control" / "job.json").exists():
        return asyncio.run(resume_job(directory, Nobody())).exit_code
    spec = JobSpec(workers=4, out=str(directory), script=script, script_args=arguments)
    settings = Settings(granted=True, rebalance=False)
    return asyncio.run(run_job(spec, DeviceSet.parse("cpu*1"), Nobody(), settings=settings)).exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], tuple(sys.argv[3:])))
