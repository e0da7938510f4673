"""SHA-256 over training state: the one number that says whether two runs agree bit for bit.

`digest` covers name, dtype, shape and raw bytes of the tensors of the models and then of the
optimizers, names sorted. A difference in one mantissa bit is a different digest; NaNs compare by bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["digest", "flat_state", "tensor_digest"]


def digest(models: Mapping[str, Mapping[str, Any]], optimizers: Mapping[str, Mapping[str, Any]]) -> str:
    """Arguments map names to state dicts; with a single entry its name is not part of the tensors' names."""
    total = hashlib.sha256()
    for group in (models, optimizers):
        tensors: dict[str, torch.Tensor] = {}
        for name, state in group.items():
            prefix = f"{name}." if len(group) > 1 else ""
            tensors |= {f"{prefix}{path}": leaf for path, leaf in flat_state(state) if isinstance(leaf, torch.Tensor)}
        for path in sorted(tensors):
            _update(total, path, tensors[path])
    return total.hexdigest()


def tensor_digest(tensor: torch.Tensor) -> str:
    one = hashlib.sha256()
    _update(one, "", tensor)
    return one.hexdigest()


def flat_state(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested dicts, lists and tuples with its dotted path.

    >>> list(flat_state({"a": {"b": 1}, "c": [2, 3]}))
    [('a.b', 1), ('c.0', 2), ('c.1', 3)]
    """
    if isinstance(state, Mapping):
        items: Iterator[tuple[Any, Any]] = iter(state.items())
    elif isinstance(state, list | tuple):
        items = iter(enumerate(state))
    else:
        yield path, state
        return
    for key, value in items:
        yield from flat_state(value, f"{path}.{key}" if path else str(key))


def _update(total: hashlib._Hash, name: str, tensor: torch.Tensor) -> None:
    total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel():
        total.update(flat.view(torch.uint8).numpy().data)
