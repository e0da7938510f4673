"""A digest of state at memory speed, for comparing executors while they train.

128 bits of XXH3: it finds what went wrong by accident, not by intent, and is no promise between versions or machines.
What is promised outside is the SHA-256 of `core.encoding.digest`.
"""

from __future__ import annotations

from typing import Any

import torch
import xxhash

from isoscale.core.encoding import header as headers

__all__ = ["fast_digest"]


def fast_digest(tree: Any) -> str:
    """32 hex digits over structure, types, dtypes, shapes and bytes of a tensor or of nested state.

    The order of dict keys and strides do not count. Raises TypeError for what `core.encoding.header` cannot hold.

    >>> fast_digest({"a": 1, "b": [2]}) == fast_digest({"b": [2], "a": 1}) != fast_digest({"b": (2,), "a": 1})
    True
    """
    header, tensors = headers.encode(tree, canonical=True)
    total = xxhash.xxh3_128(header)
    for tensor in tensors:
        # Dtype and shape are in the header, so the lengths of the pieces are known and they cannot run together.
        row = headers.bits(tensor).cpu().contiguous().view(-1)
        if row.numel():
            total.update(row.view(torch.uint8).numpy().data)
    return total.hexdigest()
