"""Files that set-up looks for and training writes: the script's own resume, which every executor that joins would take.

A script under torchrun looks for its checkpoint when it starts, and writes it as it goes. In a job set-up runs again on
every join, so newcomers would find what the others have written since. While a training function is set up, the paths
of checkpoints that it looks for are noted; writing one of them later is refused, by `job.save` and by `torch.save`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from isoscale.core.rules import user_location
from isoscale.errors import TurnRuleError

__all__ = ["OwnFiles"]

#: what checkpoints are called; others are not noted, there may be a million of them
_SUFFIXES = (".bin", ".ckpt", ".json", ".npz", ".pickle", ".pkl", ".pt", ".pth", ".safetensors", ".tar")


class OwnFiles:
    def __init__(self, is_set_up: Callable[[], bool]) -> None:
        """`is_set_up` says whether steps have begun."""
        self._is_set_up = is_set_up
        #: absolute path, and the line that looked for it
        self._looked_for: dict[str, str] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """As long as the training function runs."""
        looking: list[tuple[Any, str]] = [(os.path, "exists"), (os.path, "isfile"), (Path, "exists"), (Path, "is_file")]
        with ExitStack() as undo:
            for owner, name in [*looking, (torch, "load"), (torch, "save")]:
                original = getattr(owner, name)
                undo.callback(setattr, owner, name, original)
                setattr(owner, name, (self._checking if name == "save" else self._noting)(original))
            yield

    def check(self, path: str | os.PathLike[str]) -> None:
        """About to write a file. Raises TurnRuleError if set-up has looked for it."""
        where = self._looked_for.get(os.path.abspath(path)) if self._looked_for and self._is_set_up() else None
        if where is not None:
            raise TurnRuleError(
                rule=f"this writes {os.fspath(path)}, which set-up looks for ({where}): an executor that joins later "
                "would find it and begin otherwise",
                logical_rank=None,
                location=user_location(),
                remedy="leave the script's own resume out (isoscale resume goes on in mid-epoch by itself), or read a "
                "file that this job does not write",
            )

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def noting(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, str | os.PathLike) and not self._is_set_up():
                name = os.fspath(path)
                if isinstance(name, str) and name.endswith(_SUFFIXES):
                    self._looked_for.setdefault(os.path.abspath(name), user_location())
            return original(path, *args, **kwargs)

        return noting

    def _checking(self, original: Callable[..., None]) -> Callable[..., None]:
        def checking(thing: object, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, str | os.PathLike):
                self.check(f)
            original(thing, f, *args, **kwargs)

        return checking
