"""What all logical workers predicted in a step, on every executor: padded, preprocessed and joined as accelerate does.

Two exchanges, both before the step is sealed, so that they are done again with it: how large everybody's tensors are,
then the tensors themselves. Between them each worker's are padded to the largest and given to
`preprocess_logits_for_metrics`, worker by worker, as every rank of a stock script does with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import torch

from isoscale.core.encoding import codec
from isoscale.core.reduction.exchange import Exchange

__all__ = ["Prediction", "gather", "truncated"]

_PAD = -100
#: along which tensors of different lengths are padded
_LENGTH = 1


class Prediction(NamedTuple):
    """Of one turn; each field a tensor, a nested tuple, list or dict of tensors, or None."""

    losses: Any
    inputs: Any
    labels: Any
    logits: Any


def gather(
    given: Mapping[int, Prediction], exchange: Exchange, preprocess: Callable[[Any, Any], Any] | None
) -> Prediction:
    """Of all logical workers, in logical order along the first dimension."""
    longest = _longest(given, exchange)
    mine = {rank: _prepared(prediction, longest, preprocess) for rank, prediction in given.items()}
    everybody = _exchanged(mine, exchange)
    ordered = [everybody[rank] for rank in sorted(everybody)]
    return Prediction(*(_joined([one[i] for one in ordered]) for i in range(len(Prediction._fields))))


def truncated(tree: Any, count: int) -> Any:
    """The first `count` samples of every tensor."""
    return _mapped(lambda tensor: tensor[:count], tree)


def _prepared(prediction: Prediction, longest: list[int], preprocess: Callable[[Any, Any], Any] | None) -> Prediction:
    lengths = iter(longest)
    losses, inputs, labels, logits = prediction
    inputs, labels, logits = (_mapped(lambda t: _padded(t, next(lengths)), tree) for tree in (inputs, labels, logits))
    if preprocess is not None and logits is not None:
        logits = preprocess(logits, labels)
    return Prediction(losses, inputs, labels, logits)


def _longest(given: Mapping[int, Prediction], exchange: Exchange) -> list[int]:
    """Of each tensor in order, the largest length over all logical workers; 0 where it has no such dimension."""
    own = [[_length(t) for t in _tensors(prediction[1:])] for prediction in given.values()]
    if exchange.placement.num_executors == 1:
        every = own
    else:
        every = [one for data in exchange.gather_bytes(msgspec.msgpack.encode(own)) for one in _decode(data)]
    return [max(lengths) for lengths in zip(*every, strict=True)]


def _decode(data: bytes) -> list[list[int]]:
    return msgspec.msgpack.decode(data, type=list[list[int]])


def _length(tensor: torch.Tensor) -> int:
    return tensor.shape[_LENGTH] if tensor.dim() > _LENGTH else 0


def _padded(tensor: torch.Tensor, longest: int) -> torch.Tensor:
    if _length(tensor) == longest:
        return tensor
    shape = list(tensor.shape)
    shape[_LENGTH] = longest
    padded = tensor.new_zeros(shape) + _PAD
    padded[:, : tensor.shape[_LENGTH]] = tensor
    return padded


def _exchanged(mine: Mapping[int, Prediction], exchange: Exchange) -> dict[int, Any]:
    if exchange.placement.num_executors == 1:
        return dict(mine)
    packed = codec.pack({rank: _plain(tuple(prediction)) for rank, prediction in mine.items()})
    everybody: dict[int, Any] = {}
    for data in exchange.gather_bytes(packed.numpy().tobytes()):
        everybody |= codec.unpack(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return everybody


def _plain(tree: Any) -> Any:
    """Dicts, lists and tuples only: what a message can hold."""
    if isinstance(tree, Mapping):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_plain(value) for value in tree] if isinstance(tree, list) else tuple(map(_plain, tree))
    return tree.detach().contiguous() if isinstance(tree, torch.Tensor) else tree


def _joined(trees: list[Any]) -> Any:
    first = trees[0]
    if isinstance(first, torch.Tensor):
        return torch.cat([tree if tree.dim() else tree[None] for tree in trees])
    if isinstance(first, list | tuple):
        return type(first)(_joined([tree[i] for tree in trees]) for i in range(len(first)))
    if isinstance(first, Mapping):
        return {key: _joined([tree[key] for tree in trees]) for key in first}
    return first


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(change, value) for value in tree)
    if isinstance(tree, Mapping):
        return {key: _mapped(change, value) for key, value in tree.items()}
    return tree


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _tensors(value)
