"""The structure of state as MessagePack: everything of a nested tree but the bytes of its tensors.

A plain value stands for itself; anything else is a list that begins with its tag:

    [0, key, value, ...]   dict, in its order          [4, bytes]   int of more than 64 bits, little-endian
    [1, ...]               list                        [5, bytes]   str that UTF-8 cannot hold (lone surrogates)
    [2, ...]               tuple
    [3, dtype, [size, ...], [stride, ...]]             tensor; strides are in elements

An OrderedDict becomes a dict, a parameter a tensor; other subclasses (NumPy's scalars among them), sparse and quantized
tensors are refused. Reading checks everything and runs nothing. Where bytes lie is `core.encoding.codec`'s.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

__all__ = ["TensorReader", "bits", "decode", "encode", "kept_strides"]

TensorReader = Callable[[torch.dtype, tuple[int, ...], tuple[int, ...]], torch.Tensor]

_DICT, _LIST, _TUPLE, _TENSOR, _BIG, _TEXT = range(6)
_NUM_PARTS = {_TENSOR: 4, _BIG: 2, _TEXT: 2}
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    # Quantized dtypes mean nothing without their quantizer, which has no bytes in the tensor.
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.qint", "torch.quint"))
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# No integer has 16 bytes.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_MAX_INT64 = 2**63 - 1


def encode(tree: Any, *, canonical: bool = False) -> tuple[bytes, list[torch.Tensor]]:
    """The header of `tree`, and its tensors in the header's order.

    `canonical` leaves out what is not a value, the order of keys and strides; such a header is for comparing only.
    Raises TypeError, with the place in the tree, for what it cannot hold.
    """
    tensors: list[torch.Tensor] = []
    return msgspec.msgpack.encode(_node(tree, tensors, canonical, "state")), tensors


def decode(header: bytes, read: TensorReader) -> Any:
    """The tree; `read` is called for every tensor in order. Raises ValueError if the header is not one."""
    try:
        return _value(msgspec.msgpack.decode(header), read)
    except (msgspec.MsgspecError, RuntimeError, MemoryError) as error:  # RuntimeError: too deep, or torch refuses sizes
        raise ValueError(f"damaged header: {error}") from error


def kept_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The tensor's own strides if they fill its memory without overlap, else those of a contiguous one.

    >>> kept_strides(torch.empty(2, 3).t()), kept_strides(torch.empty(2, 3)[:, ::2]), kept_strides(torch.empty(()))
    ((1, 3), (2, 1), ())
    """
    strides = tensor.stride()
    if tensor.is_contiguous() or _is_dense(tensor.shape, strides):
        return strides
    return tuple(math.prod(tensor.shape[dim + 1 :]) for dim in range(tensor.dim()))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one of integers of its size: torch copies these for every dtype, bit by bit."""
    return tensor.detach().resolve_conj().resolve_neg().view(_BITS[tensor.itemsize])


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements lie without gap or overlap. Strides of dimensions of one element say nothing."""
    if 0 in shape:
        return True
    filled = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride != filled:
            return False
        filled *= size
    return True


def _node(tree: Any, tensors: list[torch.Tensor], canonical: bool, path: str) -> Any:
    kind = type(tree)
    if tree is None or kind in (bool, float, bytes):
        return tree
    if kind is int:
        return tree if -_MAX_INT64 <= tree <= _MAX_INT64 else _big(tree, path)
    if kind is str:
        return tree if _is_utf8(tree) else [_TEXT, tree.encode("utf-8", "surrogatepass")]
    if kind is list or kind is tuple:
        parts = [_node(part, tensors, canonical, f"{path}[{i}]") for i, part in enumerate(tree)]
        return [_LIST if kind is list else _TUPLE, *parts]
    if kind is dict or kind is OrderedDict:
        items = [(_key(key, path), key, value) for key, value in tree.items()]
        if canonical:
            items.sort(key=lambda item: msgspec.msgpack.encode(item[0]))
        pairs = [[node, _node(value, tensors, canonical, f"{path}[{key!r}]")] for node, key, value in items]
        return [_DICT, *(part for pair in pairs for part in pair)]
    if isinstance(tree, torch.Tensor) and tree.layout is torch.strided and tree.dtype in _DTYPE_NAMES:
        if tree.is_meta:
            raise TypeError(f"{path}: a tensor on the meta device has no bytes")
        tensors.append(tree)
        return [_TENSOR, _DTYPE_NAMES[tree.dtype], list(tree.shape), [] if canonical else list(kept_strides(tree))]
    what = (
        f"{tree.layout} tensor of {tree.dtype}"
        if isinstance(tree, torch.Tensor)
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    raise TypeError(f"{path}: cannot hold a {what}; give dicts, lists, tuples, tensors and plain values")


def _big(number: int, path: str) -> list[Any]:
    num_bytes = (number if number >= 0 else ~number).bit_length() // 8 + 1
    # What `torch.load(weights_only=True)` can read, so that whatever is packed can be kept in a file too.
    if num_bytes > 255:
        raise TypeError(f"{path}: cannot hold an int of {num_bytes} bytes, at most 255")
    return [_BIG, number.to_bytes(num_bytes, "little", signed=True)]


def _key(key: Any, path: str) -> Any:
    tensors: list[torch.Tensor] = []
    node = _node(key, tensors, False, f"{path}[key]")
    if tensors:
        raise TypeError(f"{path}: a tensor is no key")
    return node


def _is_utf8(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _value(node: Any, read: TensorReader) -> Any:
    if not isinstance(node, list):
        if node is None or isinstance(node, bool | int | float | str | bytes):
            return node
        raise ValueError(f"damaged header: {type(node).__name__} in place of a value")
    tag, *parts = node or [None]
    if type(tag) is not int or tag not in range(6) or len(node) != _NUM_PARTS.get(tag, len(node)):
        raise ValueError(f"damaged header: unknown tag {tag!r} with {len(parts)} parts")
    if tag == _DICT:
        return _dict(parts, read)
    if tag in (_LIST, _TUPLE):
        values = [_value(part, read) for part in parts]
        return values if tag == _LIST else tuple(values)
    if tag == _TENSOR:
        return read(*_tensor(*parts))
    if not isinstance(parts[0], bytes):
        raise ValueError(f"damaged header: {type(parts[0]).__name__} in place of bytes")
    return int.from_bytes(parts[0], "little", signed=True) if tag == _BIG else parts[0].decode("utf-8", "surrogatepass")


def _dict(parts: list[Any], read: TensorReader) -> dict[Any, Any]:
    if len(parts) % 2:
        raise ValueError("damaged header: a key without a value")
    out: dict[Any, Any] = {}
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        try:
            out[_value(key, read)] = _value(value, read)
        except TypeError as error:
            raise ValueError(f"damaged header: {error}") from error
    if len(out) != len(parts) // 2:
        raise ValueError("damaged header: a key appears twice")
    return out


def _tensor(dtype: Any, shape: Any, strides: Any) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]:
    for numbers in (shape, strides):
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n <= _MAX_INT64 for n in numbers):
            raise ValueError(f"damaged header: {numbers!r} in place of sizes or strides")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ValueError(f"damaged header: unknown dtype {dtype!r}")
    if len(shape) != len(strides) or not _is_dense(shape, strides):
        raise ValueError(f"damaged header: strides {strides} do not fit the shape {shape}")
    return _DTYPES[dtype], tuple(shape), tuple(strides)
