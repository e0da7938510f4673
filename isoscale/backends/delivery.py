"""What a process needs as files, on a machine that does not see those of whoever asks for it.

Token and certificates come with the request itself (`Launch.files`), and get a private directory of their own. So does
the output of a process, and its working directory, where the machine has none of these paths.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from isoscale.backends.seam import Launch

__all__ = ["Delivery"]


class Delivery:
    """For one process. Everything goes with `close`."""

    def __init__(self) -> None:
        self._place: Path | None = None

    @property
    def place(self) -> str:
        """The directory; "" without one."""
        return "" if self._place is None else str(self._place)

    def deliver(self, launch: Launch) -> Launch:
        """The same, for this machine. Raises OSError."""
        if not launch.files:
            return launch
        environment = dict(launch.environment)
        for name, contents in launch.files.items():
            with contextlib.suppress(OSError):
                if Path(environment[name]).read_bytes() == contents:
                    continue
            path = self._directory() / name.lower()
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:
                file.write(contents)
            environment[name] = str(path)
        launch = replace(launch, environment=environment, files={})
        if not launch.log.parent.is_dir():
            launch = replace(launch, log=self._directory() / "output.log")
        if launch.cwd is not None and not launch.cwd.is_dir():
            launch = replace(launch, cwd=self._directory())
        return launch

    def close(self) -> None:
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None

    def _directory(self) -> Path:
        if self._place is None:
            self._place = Path(tempfile.mkdtemp(prefix="isoscale-given-"))  # for this user only
        return self._place
