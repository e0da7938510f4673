"""Do all executors of a job run the same code, on the same data? The coordinator's record of it, in DIR/code.

Told what executors have imported and what they read; says what is wrong with one that has something else. What becomes
of it is `runtime.membership.state_machine`'s affair, what is compared `runtime.code.first_seen`'s.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

from isoscale.errors import UserError
from isoscale.protocol import messages as m
from isoscale.protocol.files import write_json_atomic
from isoscale.runtime.code.first_seen import FirstSeen, shown
from isoscale.runtime.code.reading import read_regular
from isoscale.runtime.code.store import code_directory
from isoscale.types import Level

__all__ = ["Provenance"]

_FILE = "imports.json"
_LIMIT = 64 * 2**20


class Provenance:
    def __init__(self, out: str, level: Level, *, anew: bool) -> None:
        """`anew`: what was seen before does not count any more."""
        self._path = code_directory(out) / _FILE
        self._out = out
        #: at `off` executors may compute with other libraries
        self._libraries = level != "off"
        self._seen = FirstSeen()
        #: for people: why something is not compared
        self.warning = ""
        if not anew:
            self._read_back()
        #: somebody trained with something else: what comes of it is not the job's
        self.spoiled = False
        #: what newcomers use that the job does not, so far
        self._pending: dict[int, list[m.Uses]] = {}
        self._objections: dict[int, UserError] = {}

    def _read_back(self) -> None:
        try:
            self._seen = FirstSeen.from_json(json.loads(read_regular(str(self._path), _LIMIT)))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            self.warning = f"{self._path} is damaged ({error}): libraries and data are not compared with earlier ones"

    @property
    def versions(self) -> dict[str, str]:
        """Of Python and installed packages, for one who wants to join; empty where any will do."""
        return dict(self._seen.versions) if self._libraries else {}

    def begin_again(self) -> None:
        """Nobody is alive who imported it: isoscale itself may have been replaced meanwhile."""
        self._seen.forget("isoscale")

    def compare(self, executor: int, uses: m.Uses, *, trains: bool, known: Callable[[int], bool]) -> UserError | None:
        """Why it may not train in this job. `trains`: it does, or is about to begin the job with others."""
        self._pending = {e: list_ for e, list_ in self._pending.items() if known(e)}
        self._objections = {e: error for e, error in self._objections.items() if known(e)}
        words = self._seen.differences(uses, libraries=self._libraries)
        if words:
            self.spoiled |= trains
            return self._objections.setdefault(executor, self._refusal(executor, words))
        if trains:
            self._learn(uses)
            for earlier in self._pending.pop(executor, []):
                self._learn(earlier)
        else:
            self._pending.setdefault(executor, []).append(self._seen.news(uses))
        return None

    def objection(self, executor: int) -> UserError | None:
        return self._objections.get(executor)

    def joined(self, executor: int) -> UserError | None:
        """A newcomer has: what it brought is the job's, unless others were first."""
        words: list[str] = []
        for uses in self._pending.pop(executor, []):
            words += self._seen.differences(uses, libraries=self._libraries)
            self._learn(uses)
        self.spoiled |= bool(words)
        return self._refusal(executor, words) if words else None

    def _learn(self, uses: m.Uses) -> None:
        if self._seen.learn(uses):
            with contextlib.suppress(OSError):  # a successor asks executors again
                write_json_atomic(self._path, self._seen.to_json())

    def _refusal(self, executor: int, words: list[str]) -> UserError:
        return UserError(
            field="executor",
            value=executor,
            problem=f"runs other code, or reads other data, than the job began with: {shown(words)}",
            remedy=f"put it back, or go on with the new: isoscale stop, then isoscale resume {self._out} --new-code",
        )
