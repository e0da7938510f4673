"""What an executor keeps in the run's storage, and gets from there, where its machine does not see the run's directory.

Every errand goes through a courier (`storage.courier`): this process trains. Errands that are waited for and those that
look for a coordinator have one each, so that neither waits for the other.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from isoscale.errors import IsoscaleError
from isoscale.runtime.checkpoint import state_file, stored
from isoscale.runtime.checkpoint.files import Written
from isoscale.runtime.storage import names
from isoscale.runtime.storage.client import sha256_of
from isoscale.runtime.storage.courier import CourierStorage
from isoscale.runtime.storage.ledger import find_address
from isoscale.runtime.storage.pieces import GrowingFile
from isoscale.runtime.storage.private import scratch_directory
from isoscale.runtime.storage.records import Result, read, written

__all__ = ["Depot"]

#: how often a lost coordinator is looked for, and a log brought to the storage
_LOOK_S, _LOG_S = 1.0, 10.0


class Depot:
    def __init__(self, url: str) -> None:
        """Raises OSError if there is no place for files on their way."""
        self.url = url
        #: on this machine's own disk, for this process alone
        self.scratch = scratch_directory(url)
        self._goods, self._looks, self._prints = (CourierStorage(url) for _ in range(3))
        self._looked_at, self._is_looking = -_LOOK_S, False
        self._found: tuple[str, int] | None = None
        self._log: GrowingFile | None = None

    def find_coordinator(self) -> tuple[str, int] | None:
        """Address and term of the newest one, as of a moment ago; None if there is none, or nobody has answered yet.

        Does not wait: while the storage is away the coordinator that is known may be there.
        """
        if not self._is_looking and time.monotonic() - self._looked_at >= _LOOK_S:
            self._is_looking = True
            threading.Thread(target=self._look, name="look", daemon=True).start()
        return self._found

    def look_for_coordinator(self) -> tuple[str, int] | None:
        """The same as of now, however long the storage takes."""
        with contextlib.suppress(OSError):
            address = find_address(self._looks)
            self._found = None if address is None else (address.url, address.term)
        return self._found

    def _look(self) -> None:
        try:
            self.look_for_coordinator()
        finally:
            self._looked_at, self._is_looking = time.monotonic(), False

    def hand_over(self, directory: Path, made: Written) -> None:
        """A checkpoint that this process has written. Raises CheckpointError."""
        stored.hand_over(self._goods, directory, made)

    def read_checkpoint(self, reference: str) -> dict[str, object]:
        """One to begin from, as the coordinator speaks of it. Raises CheckpointError."""
        path = stored.fetch(self._goods, reference, self.scratch)
        try:
            return state_file.read(path)
        finally:
            path.unlink(missing_ok=True)

    def keep_result(self, path: Path, step: int, digest: str, stop_reason: str, unheard: Sequence[str] = ()) -> None:
        """The end of the job: one, whoever is first. Raises IsoscaleError if there is another one, and OSError."""
        key = names.result(step, secrets.token_hex(6))
        self._goods.upload(key, path)
        size, sha256 = path.stat().st_size, sha256_of(path)
        record = Result(
            step=step,
            digest=digest,
            stop_reason=stop_reason,
            object=key,
            size=size,
            sha256=sha256,
            unheard=tuple(unheard),
        )
        if self._goods.create(names.result(step), written(record)):
            return
        self._goods.remove(key)
        there = read(self._goods.read(names.result(step)), Result)
        if there.digest != digest:
            raise IsoscaleError(f"{self.url} has another result of step {step}: {there.digest}, and not {digest}")

    def keep_crashed(self, path: Path, step: int) -> None:
        """The state after a crash outside turns. Raises OSError."""
        self._goods.upload(f"crashed/step-{step:08d}.pt", path)

    def follow_log(self, executor: int) -> None:
        """Bring what this process prints to the storage, if it prints to a file."""
        with contextlib.suppress(OSError):
            if not stat.S_ISREG(os.fstat(1).st_mode):
                return
            path = Path(os.readlink("/proc/self/fd/1"))
            prefix = f"logs/executor-{executor}-{os.getpid()}"
            self._log = GrowingFile(self._prints, path, prefix, ".log", start=path.stat().st_size)
            threading.Thread(target=self._follow, name="log", daemon=True).start()

    def close(self) -> None:
        """Nothing is left of it on this machine."""
        self._keep_log()
        for courier in (self._goods, self._looks, self._prints):
            courier.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _follow(self) -> None:
        while True:
            time.sleep(_LOG_S)
            self._keep_log()

    def _keep_log(self) -> None:
        with contextlib.suppress(OSError):
            if self._log is not None:
                self._log.keep()
