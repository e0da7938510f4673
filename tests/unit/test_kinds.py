from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from isoscale import kinds
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet, HostCapability, Isa

AVX2_HOST = HostCapability(isa="avx2")


@pytest.mark.parametrize(
    ("text", "canonical", "expanded"),
    [
        ("cpu", "cpu*1", ["cpu"]),
        ("cpu*2+cpu-sse*1", "cpu*2+cpu-sse*1", ["cpu", "cpu", "cpu-sse"]),
        ("cpu-sse+cpu*2", "cpu-sse*1+cpu*2", ["cpu-sse", "cpu", "cpu"]),
        ("cpu+cpu-sse+cpu", "cpu*1+cpu-sse*1+cpu*1", ["cpu", "cpu-sse", "cpu"]),
        ("cpu+cpu*2", "cpu*3", ["cpu"] * 3),
        (" cpu * 2 + cuda ", "cpu*2+cuda*1", ["cpu", "cpu", "cuda"]),
    ],
)
def test_device_sets_have_one_grammar(text: str, canonical: str, expanded: list[str]) -> None:
    devices = DeviceSet.parse(text)
    assert str(devices) == canonical
    assert list(devices) == expanded
    assert devices.total == len(devices) == len(expanded)
    assert DeviceSet.parse(str(devices)) == devices


def test_a_device_set_counts_by_kind() -> None:
    devices = DeviceSet.parse("cpu-sse+cpu*2+cpu-sse*3")
    assert devices.kinds == ("cpu-sse", "cpu")
    assert devices.counts() == {"cpu-sse": 4, "cpu": 2}


@pytest.mark.parametrize(
    "text", ["", "cpu*0", "cpu*-1", "cpu*", "*2", "cpu++cpu", "cpu*1.5", "cpu*2*2", "2*cpu", "cpu 2"]
)
def test_what_is_not_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        DeviceSet.parse(text, field="--plan")
    assert caught.value.field == "--plan"


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    for attempt in (
        lambda: DeviceSet.parse("cpu*1+tpu*8"),
        lambda: kinds.parse_kinds("cpu,tpu"),
        lambda: kinds.profile_of("tpu"),
        lambda: kinds.common_profile(["tpu"], AVX2_HOST),
    ):
        with pytest.raises(UserError, match="tpu: unknown device kind; give one of cpu, cpu-avx2, cpu-sse, cuda"):
            attempt()


def test_lists_of_kinds_keep_their_order() -> None:
    assert kinds.parse_kinds("cpu-sse, cpu,cpu-sse") == ("cpu-sse", "cpu")
    with pytest.raises(UserError):
        kinds.parse_kinds("")


@pytest.mark.parametrize(
    ("names", "host", "profile"),
    [
        (["cpu-avx2", "cpu-sse"], "avx512", "sse"),
        (["cpu", "cpu-sse"], "avx512", "sse"),
        (["cpu", "cpu-avx2"], "avx512", "shared-avx2"),
        (["cpu", "cpu-avx2"], "sse", "sse"),
        (["cpu"], "avx512", "shared-avx512"),
        (["cpu"], "avx2", "shared-avx2"),
        (["cpu-avx2"], "avx512", "shared-avx2"),
        (["cpu"], "other", "native"),
        (["cuda"], "avx2", "cuda"),
    ],
)
def test_the_common_profile_is_the_highest_that_all_can_compute(names: list[str], host: Isa, profile: str) -> None:
    assert kinds.common_profile(names, HostCapability(isa=host)).name == profile
    assert kinds.profile_named(profile).name == profile


def test_cuda_and_cpu_have_no_common_profile() -> None:
    with pytest.raises(UserError, match="no numeric profile in common"):
        kinds.common_profile(["cuda", "cpu"], AVX2_HOST)
    with pytest.raises(UserError, match="no kind"):
        kinds.common_profile([], AVX2_HOST)


def test_a_profile_needs_a_known_name_and_a_thread() -> None:
    with pytest.raises(UserError, match="unknown numeric profile"):
        kinds.profile_named("avx3")
    with pytest.raises(UserError, match="--threads=0"):
        kinds.profile_env(kinds.profile_of("cpu"), 0)


def test_a_profile_sets_threads_and_caps() -> None:
    native = kinds.profile_env(kinds.profile_of("cpu"), 2)
    assert native == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    sse = kinds.profile_env(kinds.profile_of("cpu-sse"), 1)
    assert sse["ATEN_CPU_CAPABILITY"] == "default"
    assert sse["MKL_CBWR"] == "COMPATIBLE"
    assert kinds.profile_env(kinds.profile_of("cuda"), 1)["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_an_executor_inherits_no_cap_but_everything_else() -> None:
    base = {
        "PATH": "/bin",
        "DNNL_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
        "GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.cpu.hwcaps=-SSE4_2",
    }
    environment = kinds.executor_environment(base, kinds.profile_of("cpu-sse"), 1)
    assert environment["PATH"] == "/bin"
    assert not {"DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"} & environment.keys()
    malloc, hwcaps = environment["GLIBC_TUNABLES"].split(":")
    assert malloc == "glibc.malloc.check=1"
    assert hwcaps.startswith("glibc.cpu.hwcaps=-AVX,")
    # A stock script started beside a native executor has the user's own caps, and must have the same bits.
    assert kinds.executor_environment(base, kinds.profile_of("cpu"), 1).items() >= base.items()


@pytest.mark.parametrize(
    ("flags", "isa"),
    [
        ("fpu sse sse2", "other"),
        ("sse4_1 sse4_2", "sse"),
        ("sse4_1 sse4_2 avx avx2", "sse"),
        ("sse4_1 sse4_2 avx avx2 fma", "avx2"),
        ("sse4_1 sse4_2 avx avx2 fma avx512f", "avx2"),
        ("sse4_1 sse4_2 avx avx2 fma avx512f avx512bw avx512dq avx512vl", "avx512"),
    ],
)
def test_the_host_is_known_by_its_flags(flags: str, isa: str, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n\nprocessor\t: 1\nflags\t\t: {flags}\n")
    assert kinds.host_capability(cpuinfo, tmp_path / "none") == HostCapability(isa=isa)  # type: ignore[arg-type]


def test_a_host_without_cpuinfo_has_the_native_kind_only(tmp_path: Path) -> None:
    host = kinds.host_capability(tmp_path / "none", tmp_path / "none")
    kinds.check_kind("cpu", host)
    with pytest.raises(UserError, match=r"--devices=cpu-sse: .*; give cpu$"):
        kinds.check_kind("cpu-sse", host)


def test_a_host_is_refused_what_it_cannot_execute(tmp_path: Path) -> None:
    old = HostCapability(isa="sse")
    kinds.check_kind("cpu-sse", old)
    with pytest.raises(UserError, match="does not execute avx2 instructions; give cpu or cpu-sse"):
        kinds.check_kind("cpu-avx2", old)
    with pytest.raises(UserError, match="--kinds=shared-avx512"):
        kinds.check_profile(kinds.profile_named("shared-avx512"), AVX2_HOST)
    with pytest.raises(UserError, match="no CUDA device"):
        kinds.check_kind("cuda", old)
    kinds.check_kind("cuda", HostCapability(isa="sse", has_cuda=True))


def test_kinds_need_neither_torch_nor_numpy() -> None:
    code = "import sys, isoscale.kinds; sys.exit(bool({'torch', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
