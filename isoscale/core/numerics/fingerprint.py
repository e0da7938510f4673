"""The numeric fingerprint: what a device really computes, as a hash over the bits of a fixed set of small kernels.

Two devices with equal fingerprints belong to one numeric class and may share a job at `elastic`. The kernels are the
ones whose bits are known to depend on instruction set, library, threads or switches, in shapes that make libraries
choose different code. It is a sample: equal fingerprints do not prove that every kernel of every shape agrees.

Inputs come from integer arithmetic, so they are the same bits everywhere. Global state is neither read nor changed:
random streams, default dtype and device, grad mode, autocast. The switches that `determinism.apply` sets do count.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import numpy as np
import torch
import torch.nn.functional as F

from isoscale.core.encoding.digest import tensor_digest

__all__ = ["combine_digests", "differing_kernels", "exact_values", "fingerprint", "kernel_digests"]

_Kernel = Callable[[torch.device], list[torch.Tensor]]


def fingerprint(device: torch.device | str = "cpu") -> str:
    """SHA-256 over all kernels, in hex; the first 16 digits are enough to show."""
    return combine_digests(kernel_digests(device))


def kernel_digests(device: torch.device | str = "cpu") -> dict[str, str]:
    """The digest of each kernel's results by name, so that a refusal can say which kernels differ."""
    where = torch.device(device)
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast(where.type, enabled=False))
        return {name: _digest(kernel(where)) for name, kernel in _KERNELS.items()}


def combine_digests(digests: Mapping[str, str]) -> str:
    """The fingerprint that belongs to kernel digests, in whatever order they come."""
    total = hashlib.sha256()
    for name in sorted(digests):
        total.update(f"{name}={digests[name]}\n".encode())
    return total.hexdigest()


def differing_kernels(mine: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the kernels that do not agree, sorted.

    >>> differing_kernels({"gemm": "a", "sum": "b"}, {"gemm": "c", "sum": "b"})
    ('gemm',)
    """
    return tuple(name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name))


def _digest(tensors: list[torch.Tensor]) -> str:
    return hashlib.sha256("".join(map(tensor_digest, tensors)).encode()).hexdigest()


def exact_values(device: torch.device, *shape: int, salt: int = 0) -> torch.Tensor:
    """Float32 values in [-1, 1) that look random. Every step is exact: integers, then a division by 2^15."""
    index = torch.arange(math.prod(shape), dtype=torch.int64, device="cpu") + 1_000_003 * salt
    mixed = (index * 2_654_435_761) & 0xFFFF_FFFF
    mixed = ((mixed ^ (mixed >> 15)) * 2_246_822_519) & 0xFFFF_FFFF
    mixed = ((mixed ^ (mixed >> 13)) >> 8) & 0xFFFF
    return ((mixed - 32_768).to(torch.float32) / 32_768).reshape(shape).to(device)


def _with_gradients(output: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """`output` and the gradients of `inputs` for a fixed gradient of `output`."""
    seed = exact_values(output.device, *output.shape, salt=99)
    return [output, *torch.autograd.grad(output, inputs, seed)]


def _convolution(channels: int, filters: int, size: int, kernel: int, stride: int = 1, groups: int = 1) -> _Kernel:
    def run(device: torch.device) -> list[torch.Tensor]:
        images = exact_values(device, 2, channels, size, size).requires_grad_()
        weight = exact_values(device, filters, channels // groups, kernel, kernel, salt=1).requires_grad_()
        bias = exact_values(device, filters, salt=2).requires_grad_()
        output = F.conv2d(images, weight, bias, stride=stride, padding=kernel // 2, groups=groups)
        return _with_gradients(output, images, weight, bias)

    return run


def _gemm(rows: int, inner: int, columns: int) -> _Kernel:
    def run(device: torch.device) -> list[torch.Tensor]:
        left = exact_values(device, rows, inner).requires_grad_()
        weight = exact_values(device, columns, inner, salt=1).requires_grad_()
        bias = exact_values(device, columns, salt=2).requires_grad_()
        return _with_gradients(F.linear(left, weight, bias), left, weight, bias)

    return run


def _batched_gemm(device: torch.device) -> list[torch.Tensor]:
    left, right = exact_values(device, 6, 33, 20), exact_values(device, 6, 20, 17, salt=1)
    return [torch.bmm(left, right), torch.einsum("bij,bkj->bik", left, left)]


def _matrix_vector(device: torch.device) -> list[torch.Tensor]:
    matrix, vector = exact_values(device, 67, 301), exact_values(device, 301, salt=1)
    return [matrix @ vector, torch.dot(vector, vector)]


def _reductions(device: torch.device) -> list[torch.Tensor]:
    # Long enough for several threads to share it, and of odd length.
    long, table = exact_values(device, 100_003), exact_values(device, 61, 259, salt=1)
    return [
        long.sum(),
        long.mean(),
        long.var(),
        long.norm(),
        table.sum(0),
        table.sum(1),
        table.std(1),
        table.cumsum(1),
        table.logsumexp(1),
        long.to(torch.float64).sum(),
    ]


def _softmax(device: torch.device) -> list[torch.Tensor]:
    logits = exact_values(device, 37, 101).requires_grad_()
    target = torch.arange(37, dtype=torch.int64, device=device) % 101
    loss = F.cross_entropy(logits * 4, target, reduction="none")
    return [logits.softmax(0), logits.softmax(1), *_with_gradients(loss, logits)]


def _layer_norm(device: torch.device) -> list[torch.Tensor]:
    x = exact_values(device, 21, 133).requires_grad_()
    weight, bias = (exact_values(device, 133, salt=salt).requires_grad_() for salt in (1, 2))
    return _with_gradients(F.layer_norm(x, (133,), weight, bias), x, weight, bias)


def _batch_norm(device: torch.device) -> list[torch.Tensor]:
    x = exact_values(device, 5, 12, 9, 9).requires_grad_()
    weight, bias = (exact_values(device, 12, salt=salt).requires_grad_() for salt in (1, 2))
    mean, variance = exact_values(device, 12, salt=3), exact_values(device, 12, salt=4).abs()
    output = F.batch_norm(x, mean, variance, weight, bias, training=True)
    return [*_with_gradients(output, x, weight, bias), mean, variance]


def _elementary(device: torch.device) -> list[torch.Tensor]:
    x = exact_values(device, 4_099) * 6
    positive = x.abs() + 0.01
    smooth = [torch.exp, torch.tanh, torch.erf, torch.sigmoid, torch.sin, torch.expm1]
    of_positive = [torch.log, torch.rsqrt, torch.sqrt, torch.log1p, torch.reciprocal]
    return [*(f(x) for f in smooth), *(f(positive) for f in of_positive), positive.pow(1.7), x.double().exp()]


def _activations(device: torch.device) -> list[torch.Tensor]:
    x = (exact_values(device, 3, 1_027) * 4).requires_grad_()
    outputs = [F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.softplus(x), F.elu(x)]
    return [tensor for output in outputs for tensor in _with_gradients(output, x)]


def _attention(device: torch.device) -> list[torch.Tensor]:
    query, key, value = (exact_values(device, 2, 2, 24, 16, salt=salt).requires_grad_() for salt in range(3))
    output = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return _with_gradients(output, query, key, value)


def _scattered(device: torch.device) -> list[torch.Tensor]:
    table = exact_values(device, 50, 24)
    index = (torch.arange(400, dtype=torch.int64, device=device) * 7) % 50
    offsets = torch.arange(0, 400, 8, dtype=torch.int64, device=device)
    rows, weights = exact_values(device, 400, 24, salt=1), exact_values(device, 400, salt=2)
    bags = F.embedding_bag(index, table, offsets, mode="sum", per_sample_weights=weights)
    leaf = table.clone().requires_grad_()
    return [bags, table.index_add(0, index, rows), *_with_gradients(F.embedding(index, leaf), leaf)]


def _recurrent(device: torch.device) -> list[torch.Tensor]:
    x, state = exact_values(device, 5, 3, 10), exact_values(device, 1, 3, 12, salt=1)
    weights = [exact_values(device, 48, 10, salt=2), exact_values(device, 48, 12, salt=3)]
    biases = [exact_values(device, 48, salt=4), exact_values(device, 48, salt=5)]
    leaves = [tensor.requires_grad_() for tensor in (*weights, *biases)]
    output, _, _ = torch.lstm(x, (state, state), leaves, True, 1, 0.0, True, False, False)
    return _with_gradients(output, *leaves)


def _numpy(device: torch.device) -> list[torch.Tensor]:
    """NumPy has instruction sets, and a BLAS, of its own; transforms of data use them."""
    x = exact_values(torch.device("cpu"), 71, 97).numpy()
    results = [np.exp(x), np.sin(x), np.log1p(np.abs(x)), x.sum(0), x.std(1), x @ x.T]
    return [torch.from_numpy(result) for result in results]


def _optimizer_arithmetic(device: torch.device) -> list[torch.Tensor]:
    parameter, gradient = exact_values(device, 1_031), exact_values(device, 1_031, salt=1)
    momentum = gradient.mul(0.9).add(parameter, alpha=0.1)
    second = gradient.square().mul(0.999).addcmul(gradient, gradient, value=0.001)
    return [momentum, second, parameter.addcdiv(momentum, second.sqrt().add(1e-8), value=-0.05)]


_KERNELS: dict[str, _Kernel] = {
    "conv_first_layer": _convolution(3, 16, 16, 3),
    "conv_3x3": _convolution(16, 24, 12, 3),
    "conv_3x3_stride": _convolution(16, 32, 13, 3, stride=2),
    "conv_1x1": _convolution(24, 16, 10, 1),
    "conv_5x5_odd": _convolution(7, 11, 9, 5),
    "conv_depthwise": _convolution(16, 16, 10, 3, groups=16),
    "gemm_tiny": _gemm(3, 5, 7),
    "gemm_odd": _gemm(33, 47, 19),
    "gemm_64": _gemm(64, 64, 64),
    "gemm_long": _gemm(16, 600, 48),
    "gemm_wide": _gemm(96, 128, 200),
    "gemm_batched": _batched_gemm,
    "matrix_vector": _matrix_vector,
    "reductions": _reductions,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "batch_norm": _batch_norm,
    "elementary": _elementary,
    "activations": _activations,
    "attention": _attention,
    "scattered": _scattered,
    "recurrent": _recurrent,
    "numpy": _numpy,
    "optimizer_arithmetic": _optimizer_arithmetic,
}
