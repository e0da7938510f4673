"""Square roots and arcs that have the same bits on every x86 CPU, for profile `sse`.

Under its SSE cap MKL computes sqrt, atan, asin and acos from RSQRTPS and RCPPS. These are approximations: Intel's and
AMD's CPUs give different bits, and no setting of MKL avoids them. NumPy takes roots with SQRTPS, which IEEE 754 defines
to the last bit, and arcs from libm.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_ARRAYS: dict[str, Callable[..., Any]] = {
    "sqrt": np.sqrt,
    "atan": np.arctan,
    "asin": np.arcsin,
    "acos": np.arccos,
}
#: what MKL's functions take; other types have code of ATen's own
_TYPES = (torch.float32, torch.float64)

_installed: torch.library.Library | None = None


def install() -> None:
    """Replaces the CPU kernels of this process. It lasts: a process computes at one profile."""
    global _installed
    if _installed is not None:
        return
    library = torch.library.Library("aten", "IMPL", "CPU")  # type: ignore[no-untyped-call]
    for name, function in _ARRAYS.items():
        _replace(library, name, _returning(function))
        _replace(library, f"{name}_", _in_place(function))
        _replace(library, f"{name}.out", _into(function))
    # ATen takes the root where the exponent is a half.
    _replace(library, "pow.Tensor_Scalar", _of_a_half(_returning(np.sqrt)))
    _replace(library, "pow_.Scalar", _of_a_half(_in_place(np.sqrt)))
    _replace(library, "pow.Tensor_Scalar_out", _of_a_half(_into(np.sqrt)))
    _installed = library


def _replace(library: torch.library.Library, name: str, kernel: Callable[..., torch.Tensor | None]) -> None:
    """`kernel` returns None for what it leaves to ATen."""
    original = torch.library.get_kernel(f"aten::{name}", "CPU")

    def replaced(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = kernel(*args, **kwargs)
        return original.call_boxed(keys, *args, **kwargs) if result is None else result

    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="(?s).*Overriding a previously registered kernel", category=UserWarning
        )
        library.impl(name, replaced, with_keyset=True)  # type: ignore[no-untyped-call]


def _returning(function: Callable[..., Any]) -> Callable[..., torch.Tensor | None]:
    def kernel(x: torch.Tensor) -> torch.Tensor | None:
        return _computed(function, x, torch.empty_like(x)) if x.dtype in _TYPES else None

    return kernel


def _in_place(function: Callable[..., Any]) -> Callable[..., torch.Tensor | None]:
    def kernel(x: torch.Tensor) -> torch.Tensor | None:
        return _computed(function, x, x) if x.dtype in _TYPES else None

    return kernel


def _into(function: Callable[..., Any]) -> Callable[..., torch.Tensor | None]:
    def kernel(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor | None:
        if x.dtype not in _TYPES or out.dtype != x.dtype:
            return None
        if out.shape != x.shape:
            out.resize_(x.shape)
        return _computed(function, x, out)

    return kernel


def _of_a_half(root: Callable[..., torch.Tensor | None]) -> Callable[..., torch.Tensor | None]:
    def kernel(x: torch.Tensor, exponent: complex, **out: torch.Tensor) -> torch.Tensor | None:
        return root(x, **out) if exponent == 0.5 else None

    return kernel


def _computed(function: Callable[..., Any], x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    with np.errstate(invalid="ignore"):
        function(x.detach().numpy(), out=out.detach().numpy())
    return out
