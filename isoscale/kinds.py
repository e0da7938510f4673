"""Device kinds, sets of devices, and the numeric profiles that make unequal kinds compute equal bits.

A **kind** is what a device is: `cpu` (whatever its host can do), `cpu-avx2` and `cpu-sse` (a CPU held to that
instruction set), `cuda`. A **numeric profile** is what an executor computes with: caps on the instruction sets of
every library that chooses kernels by CPU, set in the environment *before* torch is imported. At `off` and `elastic`
an executor runs at `profile_of(kind)`, its own best; at `heterogeneous` all run at `common_profile(kinds)`. There the
environment is the same on every kind, so is the code that runs, and so are the bits.

The caps are real: at profile `sse`, samples of the instructions that training executes held none of AVX (on an AMD
machine with AVX-512; no machine without AVX has run it yet). What caps do not reach: code compiled for the host by
others (torch.compile, Numba, extensions), and a library's choice by vendor within one instruction set (MKL; its branch
COMPATIBLE, which `sse` asks for, is documented to be the same everywhere). The fingerprint is there to tell such
hosts apart. `cuda` is written but untested: no machine with a GPU has run it yet.

Torch-free and NumPy-free. Reads /proc/cpuinfo, nothing else; sets nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from isoscale import limits
from isoscale.errors import UserError, shortened

__all__ = [
    "CAP_VARIABLES",
    "KNOWN_KINDS",
    "DeviceSet",
    "HostCapability",
    "Isa",
    "NumericProfile",
    "check_kind",
    "check_profile",
    "common_profile",
    "executor_environment",
    "host_capability",
    "parse_kinds",
    "profile_env",
    "profile_named",
    "profile_of",
]

KNOWN_KINDS = ("cpu", "cpu-avx2", "cpu-sse", "cuda")

#: "other" is a CPU without SSE4.2, or not x86: it has the kind `cpu` only, and no cap
Isa = Literal["other", "sse", "avx2", "avx512"]

# In order: each level includes the ones before it. The flags are those of /proc/cpuinfo that the libraries ask for.
_FLAGS: dict[Isa, frozenset[str]] = {
    "other": frozenset(),
    "sse": frozenset({"sse4_1", "sse4_2"}),
    "avx2": frozenset({"avx", "avx2", "fma"}),
    "avx512": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
}
_ISAS: tuple[Isa, ...] = tuple(_FLAGS)

_TUNABLES = "GLIBC_TUNABLES"
_HWCAPS = "glibc.cpu.hwcaps"
_NO_AVX512 = "-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericProfile:
    """One way of computing. Profiles of one name are equal everywhere; a job stores the name."""

    name: str
    #: what a host must be able to execute; a profile with caps executes no more than this
    isa: Isa
    #: environment variables and their values
    caps: tuple[tuple[str, str], ...] = ()
    #: what `torch.backends.cpu.get_cpu_capability()` must say; "" if the profile leaves it to the host
    aten: str = ""
    #: whether NNPACK may convolve: it has AVX2 code only and no cap of its own
    nnpack: bool = True
    #: whether roots and arcs are taken without MKL, whose code at this cap has bits of the CPU's maker
    replaces_roots: bool = False
    needs_cuda: bool = False


_NATIVE = NumericProfile(name="native", isa="other")
_SSE = NumericProfile(
    name="sse",
    isa="sse",
    caps=(
        ("ATEN_CPU_CAPABILITY", "default"),
        ("ONEDNN_MAX_CPU_ISA", "SSE41"),
        # Not SSE4_2: a CPU that is not Intel's falls from that to AUTO, which is AVX2.
        ("MKL_CBWR", "COMPATIBLE"),
        # FBGEMM's scalar code (embedding_bag) calls fma(), so it gives the bits of its AVX2 code.
        ("FBGEMM_NO_ASMJIT", "1"),
        # libm's exp, log, sin, pow have variants with FMA.
        (_TUNABLES, f"{_HWCAPS}=-AVX,-AVX2,-FMA,-FMA4,-AVX_Fast_Unaligned_Load,{_NO_AVX512}"),
        ("NPY_DISABLE_CPU_FEATURES", "X86_V3,X86_V4"),
        ("OPENBLAS_CORETYPE", "Nehalem"),
    ),
    aten="DEFAULT",
    nnpack=False,
    replaces_roots=True,
)
_AVX2 = NumericProfile(
    name="avx2",
    isa="avx2",
    caps=(
        ("ATEN_CPU_CAPABILITY", "avx2"),
        ("ONEDNN_MAX_CPU_ISA", "AVX2"),
        # Caps Intel's CPUs; on others MKL has nothing above AVX2, and ignores it.
        ("MKL_ENABLE_INSTRUCTIONS", "AVX2"),
        ("FBGEMM_ENABLE_INSTRUCTIONS", "AVX2"),
        (_TUNABLES, f"{_HWCAPS}={_NO_AVX512}"),
        ("NPY_DISABLE_CPU_FEATURES", "X86_V4"),
        ("OPENBLAS_CORETYPE", "Haswell"),
    ),
    aten="AVX2",
)
# Levels to share add MKL's promise of equal bits on every CPU that has the level. A kind alone does without: so
# `cpu-avx2` has the MKL of an uncapped process on an AVX2 machine, and the two can share a job at `elastic`.
_SHARED_AVX2 = replace(_AVX2, name="shared-avx2", caps=(*_AVX2.caps, ("MKL_CBWR", "AVX2")))
_SHARED_AVX512 = NumericProfile(
    name="shared-avx512",
    isa="avx512",
    caps=(
        ("ATEN_CPU_CAPABILITY", "avx512"),
        ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE"),
        ("MKL_CBWR", "AVX512"),
        ("FBGEMM_ENABLE_INSTRUCTIONS", "AVX512"),
        ("NPY_DISABLE_CPU_FEATURES", "AVX512_ICL,AVX512_SPR"),
        ("OPENBLAS_CORETYPE", "SkylakeX"),
    ),
    aten="AVX512",
)
# Without this variable cuBLAS has no deterministic matrix product.
_CUDA = NumericProfile(name="cuda", isa="other", caps=(("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),), needs_cuda=True)

_PROFILES = {profile.name: profile for profile in (_NATIVE, _SSE, _AVX2, _SHARED_AVX2, _SHARED_AVX512, _CUDA)}
_PROFILE_OF = {"cpu": _NATIVE, "cpu-avx2": _AVX2, "cpu-sse": _SSE, "cuda": _CUDA}
_SHARED: dict[Isa, NumericProfile] = {"other": _NATIVE, "sse": _SSE, "avx2": _SHARED_AVX2, "avx512": _SHARED_AVX512}

#: every variable that caps an instruction set; at a profile with caps an executor inherits none of them
CAP_VARIABLES = frozenset(name for profile in _PROFILES.values() for name, _ in profile.caps) | {
    # Other spellings and neighbours, which would win over or add to those that profiles set.
    "DNNL_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_ENABLE_CPU_FEATURES",
    "FBGEMM_NO_AUTOVEC",
    "FBGEMM_FORCE_AUTOVEC",
    "FBGEMM_ENABLE_AVX512_256",
}


@dataclass(frozen=True, slots=True)
class DeviceSet:
    """Devices by kind, in the order in which executors get them. One for each executor, so no more than a job may have.

    >>> devices = DeviceSet.parse("cpu*2+cpu-sse")
    >>> str(devices), devices.total, list(devices)
    ('cpu*2+cpu-sse*1', 3, ['cpu', 'cpu', 'cpu-sse'])
    """

    #: (kind, count) with positive counts; neighbours have different kinds
    groups: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        merged: list[tuple[str, int]] = []
        total = 0
        for kind, count in self.groups:
            _require_known(kind, field="devices")
            if count < 1:
                raise ValueError(f"{kind}*{count}: a count is at least 1")
            total += count
            if merged and merged[-1][0] == kind:
                count += merged.pop()[1]
            merged.append((kind, count))
        limits.within(total, "devices", limits.EXECUTORS)
        object.__setattr__(self, "groups", tuple(merged))

    @classmethod
    def parse(cls, text: str, *, field: str = "--devices") -> DeviceSet:
        """The set that `KIND*COUNT+KIND*COUNT` describes; a KIND alone counts once."""
        remedy = 'give, for example, "cpu*2+cpu-sse*1"'
        if len(text) > limits.MAX_SPEC_CHARS:
            raise UserError(field=field, value=text, problem="too long for a set of devices", remedy=remedy)
        groups, total = [], 0
        for part in text.split("+"):
            match = re.fullmatch(r"\s*([^\s*]+)\s*(?:\*\s*([0-9]{1,30})\s*)?", part)
            count = int(match[2] or 1) if match else 0
            if not match or count < 1:
                problem = f"{shortened(part.strip(), 60)!r} is not KIND*COUNT with a positive COUNT"
                raise UserError(field=field, value=text, problem=problem, remedy=remedy)
            total += count
            groups.append((_require_known(match[1], field=field), count))
        limits.within(total, field, limits.EXECUTORS, shown=text)
        return cls(tuple(groups))

    @property
    def total(self) -> int:
        return sum(count for _, count in self.groups)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Each kind once, in order of first appearance."""
        return tuple(dict.fromkeys(kind for kind, _ in self.groups))

    def counts(self) -> dict[str, int]:
        """How many devices of each kind, as in `profile.json`."""
        return {kind: sum(count for one, count in self.groups if one == kind) for kind in self.kinds}

    def __iter__(self) -> Iterator[str]:
        for kind, count in self.groups:
            yield from itertools.repeat(kind, count)

    def first(self, total: int) -> DeviceSet:
        """The first so many of them.

        >>> str(DeviceSet.parse("cpu*2+cpu-sse*2").first(3))
        'cpu*2+cpu-sse*1'
        """
        return DeviceSet(tuple((kind, 1) for kind in itertools.islice(self, total)))

    def __len__(self) -> int:
        return self.total

    def __str__(self) -> str:
        return "+".join(f"{kind}*{count}" for kind, count in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCapability:
    """What a host can execute."""

    isa: Isa
    has_cuda: bool = False


def parse_kinds(text: str, *, field: str = "--kinds") -> tuple[str, ...]:
    """The kinds of a comma-separated list, each once, in order."""
    if len(text) > limits.MAX_SPEC_CHARS:
        remedy = f"give some of {', '.join(KNOWN_KINDS)}"
        raise UserError(field=field, value=text, problem="too long for a list of kinds", remedy=remedy)
    return tuple(dict.fromkeys(_require_known(part.strip(), field=field) for part in text.split(",")))


def profile_of(kind: str) -> NumericProfile:
    """What a device of this kind computes with when no other kind has to agree: its own best."""
    return _PROFILE_OF[_require_known(kind, field="kind")]


def profile_named(name: str) -> NumericProfile:
    """The profile that a job's state names."""
    if name not in _PROFILES:
        raise UserError(
            field="profile",
            value=name,
            problem="unknown numeric profile",
            remedy=f"give one of {', '.join(_PROFILES)}",
        )
    return _PROFILES[name]


def common_profile(
    kinds: Iterable[str], host: HostCapability | None = None, *, field: str = "--kinds"
) -> NumericProfile:
    """The highest profile that every one of `kinds` can compute; for job state, so ask once per job.

    `cpu` stands for the native capability of `host`, the host that asks (None: this one), and the answer is a level
    with a name, never "native": another `cpu` host computes the same at that level if it can execute it
    (`check_profile`) and is refused if it cannot. So `cpu` with `cpu-sse` is `sse`; `cpu` alone is, on a host with
    AVX2 and no more, `shared-avx2`. Only where no level applies (a CPU that is not x86) is it `native`.
    """
    wanted = {_require_known(kind, field=field) for kind in kinds}
    if not wanted:
        raise UserError(field=field, value="", problem="no kind", remedy=f"give one of {', '.join(KNOWN_KINDS)}")
    if wanted == {"cuda"}:
        return _CUDA
    if "cuda" in wanted:
        raise UserError(
            field=field,
            value=",".join(sorted(wanted)),
            problem="CUDA and CPU devices have no numeric profile in common",
            remedy="declare kinds of one sort, or run at --determinism off",
        )
    host = host or host_capability()
    isas = [host.isa if kind == "cpu" else _PROFILE_OF[kind].isa for kind in wanted]
    return _SHARED[min(isas, key=_ISAS.index)]


def profile_env(profile: NumericProfile, threads: int) -> dict[str, str]:
    """The variables that an executor needs before it imports torch. Values only: see `executor_environment`."""
    count = str(limits.within(threads, "--threads", limits.THREADS))
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        **dict(profile.caps),
    }


def executor_environment(base: Mapping[str, str], profile: NumericProfile, threads: int) -> dict[str, str]:
    """`base` as it has to be for an executor at `profile`: caps that it holds are dropped, those of `profile` set.

    glibc's other tunables stay. At `native` the user's own caps stay too: it is what a stock script would run with.
    """
    if profile == _NATIVE:
        return {**base, **profile_env(profile, threads)}
    environment = {name: value for name, value in base.items() if name not in CAP_VARIABLES}
    environment |= profile_env(profile, threads)
    tunables = [part for part in base.get(_TUNABLES, "").split(":") if part and not part.startswith(f"{_HWCAPS}=")]
    if tunables:
        own = environment.get(_TUNABLES)
        environment[_TUNABLES] = ":".join([*tunables, own] if own else tunables)
    return environment


def host_capability(cpuinfo: Path = Path("/proc/cpuinfo"), cuda: Path = Path("/dev/nvidiactl")) -> HostCapability:
    """What this host can execute, by its kernel's word: a flag appears only if the kernel saves its registers too."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        text = ""
    match = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    flags = frozenset(match[1].split()) if match else frozenset()
    isa: Isa = "other"
    for level in _ISAS:
        if not flags >= _FLAGS[level]:
            break
        isa = level
    return HostCapability(isa=isa, has_cuda=cuda.exists())


def check_kind(kind: str, host: HostCapability | None = None, *, field: str = "--devices") -> None:
    """Refuses a kind that `host` (None: this one) cannot be."""
    _check_host(profile_of(kind), host, field=field, value=kind)


def check_profile(profile: NumericProfile, host: HostCapability | None = None, *, field: str = "--kinds") -> None:
    """Refuses a profile that `host` (None: this one) cannot execute."""
    _check_host(profile, host, field=field, value=profile.name)


def _check_host(profile: NumericProfile, host: HostCapability | None, *, field: str, value: str) -> None:
    host = host or host_capability()
    if profile.needs_cuda and not host.has_cuda:
        problem, remedy = "this host has no CUDA device", "give a CPU kind"
    elif _ISAS.index(profile.isa) > _ISAS.index(host.isa):
        problem = f"this host's CPU does not execute {profile.isa} instructions"
        lower = [
            kind for kind in ("cpu-avx2", "cpu-sse") if _ISAS.index(_PROFILE_OF[kind].isa) <= _ISAS.index(host.isa)
        ]
        remedy = f"give {' or '.join(['cpu', *lower])}"
    else:
        return
    raise UserError(field=field, value=value, problem=problem, remedy=remedy)


def _require_known(kind: str, *, field: str) -> str:
    if kind not in KNOWN_KINDS:
        raise UserError(
            field=field, value=kind, problem="unknown device kind", remedy=f"give one of {', '.join(KNOWN_KINDS)}"
        )
    return kind
