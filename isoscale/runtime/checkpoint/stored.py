"""Checkpoints in a run's storage: handed over by the executor that wrote one, made to count by the coordinator.

The executor uploads data, then the checkpoint's manifest, under names that are its own. The coordinator, who knows
which generation counts, writes an entry into its term last: that makes it a checkpoint. An upload that was broken off
has no entry; what there is of it is removed when all checkpoints that are kept are newer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from isoscale.errors import CheckpointError
from isoscale.runtime.checkpoint.files import Found, Written
from isoscale.runtime.checkpoint.manifest import Broken, Manifest
from isoscale.runtime.storage import names
from isoscale.runtime.storage.client import Storage
from isoscale.runtime.storage.counting import View, spare
from isoscale.runtime.storage.ledger import is_superseded
from isoscale.runtime.storage.records import Base, Entry, written

__all__ = ["StoredCheckpoints", "fetch", "hand_over"]


def hand_over(storage: Storage, directory: Path, made: Written) -> None:
    """From the disk of the machine that wrote it, which then has it no more. Raises CheckpointError."""
    data, manifest = directory / made.temporary_data, directory / made.temporary_manifest
    try:
        storage.upload(_object(made), data)
        storage.upload(_object(made, ".json"), manifest)
    except OSError as error:
        raise _failed(_object(made), "cannot be brought to the storage", error) from error
    finally:
        for path in (data, manifest):
            with contextlib.suppress(OSError):
                path.unlink()


def fetch(storage: Storage, reference: str, directory: Path) -> Path:
    """The file that `StoredCheckpoints.newest` speaks of, on this machine. Raises CheckpointError."""
    key, size, sha256 = reference.split(" ")
    path = directory / key.rpartition("/")[2]
    try:
        if not names.is_name(key):
            raise OSError("no object of a run")
        directory.mkdir(exist_ok=True)
        storage.download(key, path, int(size), sha256)
    except (OSError, ValueError) as error:
        raise _failed(key, "cannot be had from the storage", error) from error
    return path


class StoredCheckpoints:
    """As the holder of a term sees them."""

    def __init__(self, storage: Storage, term: int, view: View, keep: int) -> None:
        """`view` is what the term goes on with, `keep` how many stay: two at least, see `_prune`."""
        self._storage = storage
        self._term = term
        self._keep = max(keep, 2)
        self._inherited = view
        self._entries = {one.step: one for one in view.entries}

    @property
    def newest_step(self) -> int:
        """0: there is none."""
        return max(self._entries, default=0)

    def publish(self, made: Written) -> str:
        """Make it count; its object. May be repeated. Raises CheckpointError."""
        key = _object(made)
        before = self._entries.get(made.step)
        if before is not None and (before.object, before.sha256) == (key, made.sha256):
            return key  # told again, maybe to the next coordinator
        try:
            text = self._storage.read(_object(made, ".json"))
            manifest = Manifest.from_json(text)
            if (manifest.step, manifest.size, manifest.sha256) != (made.step, made.size, made.sha256):
                raise OSError("its manifest is another one's")
            if (size := self._storage.size(key)) != made.size:
                raise OSError(f"it has {size} bytes instead of {made.size}")
            entry = Entry(step=made.step, object=key, size=made.size, sha256=made.sha256, manifest=text.decode())
            self._storage.write(names.entry(self._term, made.step), written(entry))
        except (OSError, Broken) as error:
            raise _failed(key, "does not count", error) from error
        self._entries[made.step] = entry
        with contextlib.suppress(OSError):  # room in a storage is no reason to lose a checkpoint
            self._prune(made.step, [] if before is None or before.object == key else [before])
        return key

    def newest(self, warn: Callable[[str], None], *, hashed: bool) -> tuple[str, Found] | None:
        """The newest that is whole: a reference for `fetch`, and what is known of it. `warn` hears of others.

        A storage that cannot be asked says nothing against a checkpoint: then an unread one counts, since whoever
        fetches it compares all of it. Raises OSError if all of it was to be read here, and nothing else is whole.
        """
        away: OSError | None = None
        for entry in sorted(self._entries.values(), key=lambda one: one.step, reverse=True):
            try:
                manifest = Manifest.from_json(entry.manifest.encode())
                if (size := self._storage.size(entry.object)) != entry.size:
                    raise Broken(f"it has {size} bytes instead of {entry.size}")
                if hashed and self._storage.sha256(entry.object) != entry.sha256:
                    raise Broken("its sha256 is not that of its manifest")
            except FileNotFoundError:
                warn(f"checkpoint {entry.object} is skipped: it has a manifest but no data")
                continue
            except OSError as reason:
                warn(f"checkpoint {entry.object} {'is skipped' if hashed else 'is taken unseen'}: {reason}")
                away = reason
                if hashed:
                    continue
            except Broken as reason:
                warn(f"checkpoint {entry.object} is skipped: {reason}")
                continue
            found = Found(path=Path(entry.object), manifest=manifest)
            return f"{entry.object} {entry.size} {entry.sha256}", found
        if away is not None:
            raise away
        return None

    def _prune(self, published: int, replaced: list[Entry]) -> None:
        """Remove what is not needed any more. Data lies outside terms, and a successor may count on it: so what is to
        go is chosen first, then it is asked whether there is one. One that comes later still misses only the oldest."""
        gone = spare(self._entries.values(), self._keep, published)
        oldest = min(step for step in self._entries if step not in {one.step for one in gone})
        uploads = {key: names.step_of_data(key) for key in self._storage.list("data/")}
        if is_superseded(self._storage, self._term):
            return
        inherited = {one.object for one in self._inherited.entries}
        left = tuple(one for one in self._inherited.entries if one not in gone)
        if len(left) != len(self._inherited.entries):
            # First the word that it counts, then the data.
            self._inherited = View(self._inherited.term, left, self._inherited.events)
            base = Base(term=self._term, entries=left, events=self._inherited.events)
            self._storage.write(names.base(self._term), written(base))
        for entry in gone:
            if entry.object not in inherited:
                self._storage.remove(names.entry(self._term, entry.step))
            self._remove(entry)
            del self._entries[entry.step]
        for entry in replaced:
            self._remove(entry)
        for key, step in uploads.items():
            if step is not None and step < oldest:
                self._storage.remove(key)

    def _remove(self, entry: Entry) -> None:
        self._storage.remove(entry.object)
        self._storage.remove(f"{entry.object.removesuffix('.pt')}.json")


def _object(made: Written, suffix: str = ".pt") -> str:
    """Nobody writes another one's: executors of a coordinator that was replaced may have the same numbers."""
    return names.data(made.step, f"{made.tag}-{made.sha256[:12]}", suffix)


def _failed(key: str, problem: str, error: Exception) -> CheckpointError:
    reason = getattr(error, "strerror", None) or error
    return CheckpointError(path=key, problem=f"{problem} ({reason})", remedy="check the storage, and its room")
