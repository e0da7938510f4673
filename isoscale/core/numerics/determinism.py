"""Determinism levels: the switches of torch that a level needs, and the factors that decide the bits of a process.

`apply` sets this process's switches, once, before the training script runs. `factors` reads back what is in force;
executors of one job compare it when they join, and a difference names the factor. Instruction sets are capped by the
environment that a process starts with (`isoscale.kinds`); `apply` checks that, it cannot make up for it. Neither
knows what kernels really compute (`isoscale.core.numerics.fingerprint`), and neither touches random streams.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch

from isoscale import env
from isoscale.core.numerics import portable
from isoscale.core.numerics.factors import differences
from isoscale.errors import DeterminismError, UserError
from isoscale.kinds import CAP_VARIABLES, NumericProfile, profile_named
from isoscale.types import Level

__all__ = [
    "Factors",
    "Level",
    "apply",
    "differences",
    "factors",
    "flushes_denormals",
    "profile_in_force",
    "settle",
]

# Beside the caps: variables that change the bits of kernels which are otherwise fixed.
_OTHER_VARIABLES = frozenset(
    {
        "CUBLAS_WORKSPACE_CONFIG",
        "DNNL_DEFAULT_FPMATH_MODE",
        "ONEDNN_DEFAULT_FPMATH_MODE",
        "MKL_DISABLE_FAST_MM",
        "MKL_DYNAMIC",
        "NVIDIA_TF32_OVERRIDE",
        "OMP_DYNAMIC",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """The accuracy-relevant factors of a process. Equal factors are necessary for equal bits, not sufficient."""

    torch_version: str
    #: the commit torch was built from: nightlies and vendors' builds share versions
    torch_commit: str
    cuda_version: str
    cudnn_version: str
    num_threads: int
    #: the instruction set that ATen really uses
    cpu_capability: str
    has_onednn: bool
    has_nnpack: bool
    is_deterministic: bool
    cudnn_is_deterministic: bool
    cudnn_benchmarks: bool
    float32_matmul_precision: str
    flushes_denormals: bool
    #: the caps on instruction sets that are set, as NAME=VALUE, sorted, joined by spaces
    caps: str
    #: likewise the other variables that are known to matter; numbers of threads are in `num_threads`
    environment: str

    def to_dict(self) -> dict[str, str]:
        """The factors by name, as text, for messages and events."""
        return {name: str(value) for name, value in asdict(self).items()}


def apply(level: Level, threads: int, profile: NumericProfile | str = "") -> None:
    """Sets the switches of `level` for this process, whose environment must be that of `profile`.

    `profile` may be a name; "" is the one that the environment holds, which at `off` and `elastic` is the kind's own
    best. Raises DeterminismError if the process did not start with the caps of `profile`, UserError for bad values.
    """
    if level not in ("off", "elastic", "heterogeneous"):
        raise UserError(
            field="--determinism",
            value=level,
            problem="unknown level",
            remedy="give off, elastic or heterogeneous",
        )
    if threads < 1:
        raise UserError(field="--threads", value=threads, problem="no thread to compute with", remedy="give 1 or more")
    if isinstance(profile, str):
        profile = profile_named(profile) if profile else profile_in_force()
    _check_caps(profile)

    is_strict = level != "off"
    torch.set_num_threads(threads)
    _use_deterministic_algorithms(is_strict)
    torch._C._set_deterministic_fill_uninitialized_memory(True)
    torch.backends.cudnn.deterministic = is_strict
    torch.backends.cudnn.benchmark = False
    if not profile.nnpack:
        torch.backends.nnpack.set_flags(False)  # type: ignore[no-untyped-call]
    if profile.replaces_roots:
        portable.install()
    if level == "heterogeneous":
        # On CPU too: lower settings let oneDNN use bfloat16 where the hardware has it.
        torch.set_float32_matmul_precision("highest")
        if profile.needs_cuda:
            _fix_cuda_algorithms()


def settle(level: Level) -> None:
    """When set-up is over: what steps want otherwise than the beginning of a script.

    Until now memory that was not written yet held the same everywhere, for parameters that nobody initialises. In steps
    nearly every kernel asks for memory, and writes all of it: to fill that before cost 2 % of a step.

    If the script has torch.compile, what is compiled must not depend on what this process has seen before. Each shape
    has a graph of its own, and too many of them are an error, not a return to eager code.
    """
    if level == "off":
        return
    torch._C._set_deterministic_fill_uninitialized_memory(False)
    compiler = sys.modules.get("torch._dynamo.config")
    if compiler is not None:
        compiler.automatic_dynamic_shapes = False  # type: ignore[attr-defined]
        compiler.fail_on_recompile_limit_hit = True  # type: ignore[attr-defined]


def factors(environ: Mapping[str, str] | None = None) -> Factors:
    """What is in force now, in this process and (None) its environment."""
    environ = env.child_environment({}) if environ is None else environ
    return Factors(
        torch_version=torch.__version__,
        torch_commit=torch.version.git_version or "",
        cuda_version=torch.version.cuda or "",
        cudnn_version=str(torch.backends.cudnn.version() or ""),  # type: ignore[no-untyped-call]
        num_threads=torch.get_num_threads(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        has_onednn=torch._C._get_mkldnn_enabled(),
        has_nnpack=torch._C._get_nnpack_enabled(),
        is_deterministic=torch.are_deterministic_algorithms_enabled(),
        cudnn_is_deterministic=bool(torch.backends.cudnn.deterministic),
        cudnn_benchmarks=bool(torch.backends.cudnn.benchmark),
        float32_matmul_precision=torch.get_float32_matmul_precision(),
        flushes_denormals=flushes_denormals(),
        caps=_assignments(CAP_VARIABLES - _OTHER_VARIABLES, environ),
        environment=_assignments(_OTHER_VARIABLES, environ),
    )


def profile_in_force(environ: Mapping[str, str] | None = None) -> NumericProfile:
    """The profile whose caps the environment (None: this process's) holds; `native` if it holds those of none."""
    environ = env.child_environment({}) if environ is None else environ
    # A shared level holds the caps of the plain one and more, so it is asked first.
    capped = [profile_named(name) for name in ("sse", "shared-avx2", "avx2", "shared-avx512", "cuda")]
    return next((profile for profile in capped if not _missing(profile, environ)), profile_named("native"))


def _check_caps(profile: NumericProfile) -> None:
    missing = _missing(profile, env.child_environment({}))
    capability = torch.backends.cpu.get_cpu_capability()
    if profile.aten and capability != profile.aten:
        missing.append(f"ATen computes with {capability}, not {profile.aten}")
    if missing:
        raise DeterminismError(
            field="profile",
            value=profile.name,
            problem=f"this process did not start at this profile: {', '.join(missing)}",
            remedy="start executors through isoscale, which sets the environment before torch is imported",
        )


def _missing(profile: NumericProfile, environ: Mapping[str, str]) -> list[str]:
    """The caps of `profile` that `environ` does not hold. Variables that are lists (of tunables) may hold more."""
    return [f"{name}={value}" for name, value in profile.caps if value not in _values(environ.get(name, ""))]


def _values(text: str) -> list[str]:
    # CUBLAS_WORKSPACE_CONFIG is a list too, but one that begins with a colon and counts as a whole.
    return [text, *text.split(":")]


def _assignments(names: frozenset[str], environ: Mapping[str, str]) -> str:
    return " ".join(f"{name}={environ[name]}" for name in sorted(names) if name in environ)


def _use_deterministic_algorithms(is_strict: bool) -> None:
    """As torch's function, which imports all of the compiler, in 1.3 s, to set one flag of it."""
    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(is_strict)
    else:
        env.set_variable("TORCHINDUCTOR_DETERMINISTIC", "1" if is_strict else "0")
        torch._C._set_deterministic_algorithms(is_strict, warn_only=False)


def _fix_cuda_algorithms() -> None:
    """Untested: no machine with a GPU has run it yet."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    # Fused attention is tiled by what the device has; the plain formula is not.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_math_sdp(True)


#: the smallest normal number
_SMALLEST = sys.float_info.min


def flushes_denormals() -> bool:
    """By trying: torch has `set_flush_denormal` and no way to ask. The processor has one setting, for doubles, too."""
    return _SMALLEST * 0.5 == 0.0
