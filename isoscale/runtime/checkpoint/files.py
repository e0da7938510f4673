"""Checkpoints of a job: written whole beside training, published by a rename, checked before they are trusted.

    step-00000040.pt      `torch.save` of a plain dict; `torch.load(path, weights_only=True)` opens it
    step-00000040.json    the manifest (`runtime.checkpoint.manifest`): its appearance makes the checkpoint one
    .step-00000040-TAG.tmp.pt, .tmp.json    being written, or left over by a writer that died

`directory` is everywhere the one that holds these files. Any process may write; only the coordinator publishes,
cleans and prunes, so a checkpoint of an executor that is out of date never gets a name. What goes into the dict is for
the caller to decide, and so is when. Importing this module does not import torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from isoscale.errors import CheckpointError
from isoscale.protocol.files import open_regular, sync_directory, write_text_synced
from isoscale.runtime.checkpoint.failures import cannot
from isoscale.runtime.checkpoint.identity import Identity, check_identity
from isoscale.runtime.checkpoint.manifest import Broken, Manifest, data_name, manifest_name, steps_in, whole

__all__ = [
    "Found",
    "Identity",
    "Written",
    "at_or_before",
    "check_identity",
    "clean_temporaries",
    "newest",
    "publish",
    "write",
]

_TEMPORARY = re.compile(r"\.step-[0-9]{8,18}-([A-Za-z0-9_-]{1,64})\.tmp\.(?:pt|json)")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A checkpoint that is whole on the disk and has no name yet. Plain values, to be sent in a message."""

    step: int
    #: of the writer, unique among those that may write at the same time
    tag: str
    size: int
    sha256: str
    seconds: float

    def __post_init__(self) -> None:
        # It comes from another process and becomes a path.
        if self.step < 0 or not _TEMPORARY.fullmatch(self.temporary_data):
            raise ValueError(f"step={self.step}, tag={self.tag!r}: give up to 64 letters, digits, - and _ as tag")

    @property
    def temporary_data(self) -> str:
        return f".step-{self.step:08d}-{self.tag}.tmp.pt"

    @property
    def temporary_manifest(self) -> str:
        return f".step-{self.step:08d}-{self.tag}.tmp.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint that was whole when it was looked at."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def identity(self) -> Identity:
        return self.manifest.identity


def write(directory: Path, state: dict[str, object], *, step: int, identity: Identity, tag: str) -> Written:
    """Writes `state` under a temporary name, and onto the disk. Raises CheckpointError; then nothing is left of it.

    `state` consists of dicts, lists, tuples, plain values and tensors on the CPU. Anything else is refused here:
    `state_file.read` would refuse it when it is too late.
    """
    from isoscale.runtime.checkpoint import state_file

    begun = time.perf_counter()
    names = Written(step=step, tag=tag, size=0, sha256="", seconds=0.0)
    data, manifest_path = directory / names.temporary_data, directory / names.temporary_manifest
    try:
        directory.mkdir(parents=True, exist_ok=True)
        size, sha256 = state_file.save(state, data)
        manifest = Manifest(step=step, size=size, sha256=sha256, created=round(time.time(), 3), identity=identity)
        write_text_synced(manifest_path, manifest.to_json())
    except BaseException as error:
        for path in (data, manifest_path):
            with contextlib.suppress(OSError):
                path.unlink()
        if not isinstance(error, Exception):
            raise
        raise cannot("write", directory / data_name(step), error) from error
    return Written(step=step, tag=tag, size=size, sha256=sha256, seconds=time.perf_counter() - begun)


def publish(directory: Path, written: Written, keep: int) -> Path:
    """Gives a written checkpoint its name, then removes all but the newest `keep` whole ones. May be repeated.

    What is published here stays, whatever `keep` says. Raises CheckpointError if what was written is gone or changed.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: at least one checkpoint is kept")
    path = directory / data_name(written.step)
    try:
        # Data first: without its manifest it is no checkpoint yet.
        _name_data(directory, written)
        _name_manifest(directory, written)
        sync_directory(directory)
    except FileNotFoundError as error:
        raise CheckpointError(
            path=str(path), problem="what was written for it is gone", remedy="write a checkpoint again"
        ) from error
    except OSError as error:
        raise cannot("publish", path, error) from error
    _prune(directory, keep, published=written.step)
    return path


def newest(directory: Path, warn: Callable[[str], None]) -> Found | None:
    """The newest whole checkpoint. Calls `warn` once for each newer one that is not, with file and reason."""
    return at_or_before(directory, None, warn)


def at_or_before(directory: Path, step: int | None, warn: Callable[[str], None]) -> Found | None:
    """As `newest`, among those of at most `step` steps."""
    try:
        steps = steps_in(directory)
    except OSError as error:
        raise cannot("look for", directory, error) from error
    for candidate in steps:
        if step is not None and candidate > step:
            continue
        path = directory / data_name(candidate)
        try:
            return Found(path=path, manifest=whole(directory, candidate))
        except Broken as reason:
            warn(f"checkpoint {path} is skipped: {reason}")
    return None


def clean_temporaries(directory: Path, *, in_use: Collection[str] = ()) -> int:
    """Removes what dead writers left, except of the tags `in_use`; gives the number of files."""
    if not directory.is_dir():
        return 0
    left = [
        entry for entry in directory.iterdir() if (match := _TEMPORARY.fullmatch(entry.name)) and match[1] not in in_use
    ]
    for entry in left:
        entry.unlink(missing_ok=True)
    return len(left)


def _name_data(directory: Path, written: Written) -> None:
    """Raises FileNotFoundError if what was written is not there under either name."""
    temporary, path = directory / written.temporary_data, directory / data_name(written.step)
    if temporary.exists():
        if temporary.stat().st_size != written.size:
            raise FileNotFoundError(temporary)
        # Also over one of the same digest in its manifest: that may be damaged, which is why it was written again.
        temporary.replace(path)
        return
    # An earlier call may have come this far; only the digest tells its file from an older one of the same step.
    with open_regular(path) as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != written.sha256:
            raise FileNotFoundError(temporary)


def _name_manifest(directory: Path, written: Written) -> None:
    temporary, path = directory / written.temporary_manifest, directory / manifest_name(written.step)
    if temporary.exists():
        temporary.replace(path)
        return
    try:
        is_same = Manifest.read(path).sha256 == written.sha256
    except Broken:
        is_same = False
    if not is_same:
        raise FileNotFoundError(temporary)


def _prune(directory: Path, keep: int, *, published: int) -> None:
    """Whole by size: digests of older files are compared when they are needed."""
    num_whole = 0
    try:
        for step in steps_in(directory):
            if num_whole >= keep and step != published:
                # Manifest first, so that half of a removal does not look like damage to the data.
                (directory / manifest_name(step)).unlink(missing_ok=True)
                (directory / data_name(step)).unlink(missing_ok=True)
                continue
            try:
                whole(directory, step, hashed=False)
                num_whole += 1
            except Broken:
                pass
    except OSError as error:
        _log.warning("old checkpoints in %s cannot be removed: %s", directory, error)
