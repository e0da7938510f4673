"""`job.save`: into the job's directory, atomically; or to an address that fsspec knows (s3://, gs://, ...)."""

from __future__ import annotations

import io
from pathlib import Path

import torch

from isoscale.errors import UserError
from isoscale.runtime.training.state import atomic_save

__all__ = ["check_target", "save"]


def check_target(name: str, out: Path) -> None:
    """Raises UserError, on every executor alike, for what cannot be written there."""
    if "://" in name:
        import fsspec  # type: ignore[import-untyped]

        protocol = name.partition("://")[0]
        try:
            fsspec.get_filesystem_class(protocol)
        except (ImportError, ValueError) as error:
            raise _refused(
                name,
                f"no file system for {protocol}:// here ({error})",
                "install what fsspec needs for it, or use a plain name",
            ) from None
    elif ":" in Path(name).parts[0] if name else True:
        raise _refused(
            name, "neither a name in the job's directory nor an address", "write it like s3://bucket/best.pt"
        )
    elif not (out / name).resolve().is_relative_to(out.resolve()):
        raise _refused(name, "lies outside the job's directory", "use a plain name")


def save(thing: object, name: str, out: Path) -> None:
    """Whole or not at all: object stores show a file once it was written to its end."""
    if name.startswith("file://"):
        atomic_save(thing, Path(name.removeprefix("file://")))
    elif "://" in name:
        import fsspec

        buffer = io.BytesIO()
        torch.save(thing, buffer)
        with fsspec.open(name, "wb") as file:
            file.write(buffer.getbuffer())
    else:
        atomic_save(thing, out / name)


def _refused(name: str, problem: str, remedy: str) -> UserError:
    return UserError(field="job.save(name)", value=name, problem=problem, remedy=remedy)
