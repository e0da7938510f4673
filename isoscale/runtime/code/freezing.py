"""Which code a job runs: kept when it begins, the same when it goes on, other code only if somebody asks for it.

Decides when a coordinator starts, with its directory in hand; how code is found, kept and served is `runtime.code`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from isoscale.errors import UserError
from isoscale.runtime.code.collect import Snapshot, code_of_script
from isoscale.runtime.code.first_seen import shown
from isoscale.runtime.code.manifest import MANIFEST, Damaged, Manifest
from isoscale.runtime.code.store import changed_since, code_directory, freeze, manifest_of, set_aside
from isoscale.types import JobSpec

__all__ = [
    "Frozen",
    "code_kept_at",
    "code_kept_for",
    "freeze_anew",
    "go_on_with",
    "snapshot_of",
    "still_alive",
    "what_changed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """The code of a job."""

    #: where the manifest lies
    path: Path
    manifest: Manifest
    #: for the job's log: name and fields
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    #: other code than before: what was known of imports and data does not count any more
    anew: bool = False

    def of(self, spec: JobSpec) -> JobSpec:
        """The job, with its code named."""
        return replace(spec, code=self.manifest.digest, script_sha256=self.manifest.script_sha256)


def snapshot_of(spec: JobSpec) -> Snapshot:
    """The code of a job as it is now. Raises UserError if it is too much to keep."""
    return code_of_script(spec.script, module=spec.module, out=spec.out)


def freeze_anew(spec: JobSpec, snapshot: Snapshot | None = None) -> Frozen:
    """Of a job that begins. Raises UserError."""
    directory = code_directory(spec.out)
    try:
        manifest = freeze(directory, snapshot or snapshot_of(spec))
    except OSError as error:
        raise UserError(
            field="--out",
            value=spec.out,
            problem=f"the run's code cannot be kept there ({error.strerror or error})",
            remedy="free space, or give another one",
        ) from None
    fields = {"files": len(manifest.files), "bytes": manifest.total_bytes, "digest": manifest.digest}
    return Frozen(path=directory / MANIFEST, manifest=manifest, events=[("code", fields)], anew=True)


def code_kept_at(out: str | Path) -> Path:
    """Where the manifest of a run in a directory lies."""
    return code_directory(out) / MANIFEST


def code_kept_for(out: str | Path, script: str = "") -> Frozen | None:
    """What the run in a directory has kept; None if it has kept nothing. Raises UserError if it is damaged."""
    path = code_kept_at(out)
    try:
        return Frozen(path=path, manifest=Manifest.read(path))
    except FileNotFoundError:
        return None
    except Damaged as reason:
        raise UserError(
            field="DIR",
            value=out,
            problem=f"the code that the run has kept cannot be used: {reason}",
            remedy=f"with --new-code it goes on with {script or 'the script'} as it is now",
        ) from None


def go_on_with(spec: JobSpec, *, new_code: bool, snapshot: Snapshot | None = None) -> Frozen:
    """Of a job that goes on in its directory. Raises UserError."""
    before: Frozen | None = None
    try:
        before = code_kept_for(spec.out, spec.script)
    except UserError:
        if not new_code:
            raise
    if before is None:
        frozen = freeze_anew(spec, snapshot)
        warning = f"{spec.out} has kept no code: the job goes on with {spec.script} as it is now"
        return replace(frozen, warnings=[] if new_code else [warning])
    if new_code:
        return _take_new(spec, before.manifest, snapshot or snapshot_of(spec))
    if (spec.script, spec.module) != (before.manifest.script, before.manifest.module):
        return _moved(spec, before.manifest, snapshot or snapshot_of(spec))
    changed = what_changed(before.manifest)
    taking = f"isoscale resume {spec.out} --new-code takes the edited files"
    return replace(before, warnings=[f"{changed}; {taking}"] if changed else [])


def still_alive(directory: Path, executors: Sequence[int]) -> UserError:
    """Why a job cannot be given new code."""
    one = len(executors) == 1
    return UserError(
        field="--new-code",
        value=directory,
        problem=f"executor{'' if one else 's'} {listed([str(e) for e in executors])} of the job "
        f"{'is' if one else 'are'} alive and run{'s' * one} the old code",
        remedy=f"end the job first: isoscale resume {directory}, then isoscale stop {directory}",
    )


def what_changed(manifest: Manifest) -> str:
    """In words, "" if nothing did."""
    names = changed_since(manifest)
    return f"{listed(names)} changed since the run began: the frozen code runs" if names else ""


def listed(names: Sequence[str]) -> str:
    return shown(list(names)).replace("; ", ", ")


def _take_new(spec: JobSpec, before: Manifest, snapshot: Snapshot) -> Frozen:
    names = _differences(before, manifest_of(snapshot))
    with contextlib.suppress(OSError):
        if names:
            set_aside(code_directory(spec.out))
    frozen = freeze_anew(spec, snapshot)
    warning = f"the job goes on with other code than it began with: {listed(names)} changed"
    events = [("code_changed", {"files": names}), *frozen.events]
    return replace(frozen, events=events, warnings=[warning] if names else [])


def _moved(spec: JobSpec, before: Manifest, snapshot: Snapshot) -> Frozen:
    """The script has another path. The same code in another place is the same."""
    kept = {before.name_of(path) for path in before.files}
    names = [name for name in _differences(before, manifest_of(snapshot)) if name in kept]
    if names:
        raise UserError(
            field="SCRIPT",
            value=spec.module or spec.script,
            problem=f"the run in {spec.out} began with {before.module or before.script}, and {listed(names)} differs",
            remedy="give that one, or --new-code to go on with other code",
        )
    return replace(freeze_anew(spec, snapshot), events=[], anew=False)


def _differences(before: Manifest, now: Manifest) -> list[str]:
    """Names of files of which either has another version, or none."""
    old = {before.name_of(path): kept.sha256 for path, kept in before.files.items()}
    new = {now.name_of(path): kept.sha256 for path, kept in now.files.items()}
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
