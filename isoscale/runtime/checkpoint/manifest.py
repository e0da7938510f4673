"""The manifest beside a checkpoint: which file, how large, which digest, whose. A checkpoint counts from the moment
its manifest has its name. Torch-free; reads small files, and whole ones only to compare their digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from isoscale.protocol.files import open_regular, read_small
from isoscale.runtime.checkpoint.identity import Identity

__all__ = ["Broken", "Manifest", "data_name", "manifest_name", "steps_in", "whole"]

_FORMAT = 2
_NAME = re.compile(r"step-([0-9]{8,18})\.(?:pt|json)")


class Broken(Exception):  # noqa: N818 - a finding, not a failure: its text is the reason for a warning
    """A checkpoint that is not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is known of a checkpoint without opening it."""

    step: int
    #: of the .pt, in bytes
    size: int
    #: of the .pt
    sha256: str
    #: unix seconds
    created: float
    identity: Identity

    def to_json(self) -> str:
        fields = {"format": _FORMAT, "file": data_name(self.step), **asdict(self)}
        return json.dumps({**fields, "check": _check(fields)}, indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Raises Broken, also for one byte that is not as it was written."""
        try:
            manifest = cls.from_json(read_small(path))
        except FileNotFoundError:
            raise Broken("it has no manifest: it was never finished") from None
        except OSError as error:
            raise Broken(f"the manifest cannot be read ({error.strerror})") from error
        if manifest_name(manifest.step) != path.name:
            raise Broken(f"the manifest is that of step {manifest.step}")
        return manifest

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Raises Broken."""
        try:
            fields: object = json.loads(data)
            if not isinstance(fields, dict) or "format" not in fields:
                raise Broken("the manifest is no manifest")
            if fields["format"] != _FORMAT:
                raise Broken(f"the manifest has format {fields['format']}, known is {_FORMAT}")
            if fields.pop("check", None) != _check(fields):
                raise Broken("the manifest was changed or damaged")
            return msgspec.convert(fields, cls)
        except (ValueError, RecursionError) as error:
            raise Broken("the manifest is damaged") from error


def data_name(step: int) -> str:
    return f"step-{step:08d}.pt"


def manifest_name(step: int) -> str:
    return f"step-{step:08d}.json"


def steps_in(directory: Path) -> list[int]:
    """Steps of which there is a file, newest first, whole or not; none if there is no directory."""
    try:
        names = [entry.name for entry in directory.iterdir()]
    except FileNotFoundError:
        return []
    found = {int(match[1]): name for name in names if (match := _NAME.fullmatch(name))}
    return sorted(
        (step for step, name in found.items() if name in (data_name(step), manifest_name(step))), reverse=True
    )


def whole(directory: Path, step: int, *, hashed: bool = True) -> Manifest:
    """The manifest of a checkpoint whose file is as the manifest says. Raises Broken with the reason.

    Without `hashed` the size is compared, not the digest.
    """
    manifest = Manifest.read(directory / manifest_name(step))
    path = directory / data_name(step)
    try:
        if not path.exists():
            raise Broken("it has a manifest but no data")
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
        if size != manifest.size:
            raise Broken(f"it has {size} bytes instead of {manifest.size}")
        if hashed:
            with open_regular(path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != manifest.sha256:
                raise Broken("its sha256 is not that of its manifest")
    except OSError as error:
        raise Broken(f"it cannot be read ({error.strerror})") from error
    return manifest


def _check(fields: dict[str, object]) -> str:
    """SHA-256 over the other fields, so that a manifest that was altered does not pass for the job's."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
