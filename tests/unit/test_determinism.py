from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from isoscale import kinds
from isoscale.core.numerics import determinism
from isoscale.errors import DeterminismError, UserError


@pytest.fixture(autouse=True)
def switches_as_they_were() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(is_deterministic)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn


def test_levels_set_their_switches() -> None:
    torch.set_float32_matmul_precision("high")
    determinism.apply("off", 2)
    off = determinism.factors()
    assert (off.num_threads, off.is_deterministic, off.cudnn_is_deterministic) == (2, False, False)

    determinism.apply("elastic", 1)
    elastic = determinism.factors()
    assert (elastic.num_threads, elastic.is_deterministic, elastic.cudnn_is_deterministic) == (1, True, True)
    assert elastic.float32_matmul_precision == "high"

    determinism.apply("heterogeneous", 1, "native")
    assert determinism.factors().float32_matmul_precision == "highest"


def test_applying_leaves_random_streams_alone() -> None:
    before = torch.get_rng_state()
    determinism.apply("heterogeneous", 1)
    determinism.factors()
    assert torch.equal(before, torch.get_rng_state())


def test_bad_values_are_refused() -> None:
    with pytest.raises(UserError, match="--determinism=strict"):
        determinism.apply("strict", 1)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="--threads=0"):
        determinism.apply("elastic", 0)
    with pytest.raises(UserError, match="unknown numeric profile"):
        determinism.apply("elastic", 1, "avx3")


def test_a_profile_that_the_process_did_not_start_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = kinds.profile_of("cpu-sse")
    with pytest.raises(DeterminismError, match=r"profile=sse: .*MKL_CBWR=COMPATIBLE"):
        determinism.apply("elastic", 1, profile)
    # Too late: the variables are there, torch has already chosen.
    for name, value in profile.caps:
        monkeypatch.setenv(name, value)
    if torch.backends.cpu.get_cpu_capability() != "DEFAULT":
        with pytest.raises(DeterminismError, match="ATen computes with"):
            determinism.apply("elastic", 1, profile)


@pytest.mark.parametrize("name", ["native", "sse", "avx2", "shared-avx2", "shared-avx512", "cuda"])
def test_the_profile_in_force_is_read_from_the_environment(name: str) -> None:
    base = {"GLIBC_TUNABLES": "glibc.malloc.check=1"}
    environment = kinds.executor_environment(base, kinds.profile_named(name), 1)
    assert determinism.profile_in_force(environment).name == name


def test_factors_hold_the_variables_that_matter_and_no_others() -> None:
    environ = {"MKL_CBWR": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "HOME": "/root"}
    factors = determinism.factors(environ)
    assert factors.caps == "ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=AVX2"
    assert factors.environment == "ONEDNN_DEFAULT_FPMATH_MODE=BF16"
    as_text = factors.to_dict()
    assert as_text["torch_version"] == torch.__version__
    assert as_text["num_threads"] == str(torch.get_num_threads())
    assert all(isinstance(value, str) for value in as_text.values())


def test_flushing_of_denormals_is_noticed() -> None:
    assert not determinism.factors().flushes_denormals
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    try:
        assert determinism.factors().flushes_denormals
    finally:
        torch.set_flush_denormal(False)


def test_a_level_decides_which_differences_count() -> None:
    mine = determinism.factors({}).to_dict()
    capped = {**mine, "caps": "MKL_CBWR=AVX2"}
    assert determinism.differences(mine, mine, "heterogeneous") == ()
    assert determinism.differences(mine, capped, "elastic") == ()
    assert determinism.differences(mine, capped, "heterogeneous") == ("caps: '' != 'MKL_CBWR=AVX2'",)
    other = {**mine, "num_threads": "7"}
    assert determinism.differences(mine, other, "off") == ()
    assert len(determinism.differences(mine, other, "elastic")) == 1


@pytest.mark.skipif(kinds.host_capability().isa == "other", reason="this CPU has no kind but cpu")
def test_a_capped_process_starts_at_its_profile() -> None:
    code = """
from isoscale.core.numerics import determinism
determinism.apply("heterogeneous", 1, "sse")
factors = determinism.factors()
assert factors.cpu_capability == "DEFAULT", factors
assert not factors.has_nnpack, factors
"""
    environment = kinds.executor_environment(os.environ, kinds.profile_named("sse"), 1)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
