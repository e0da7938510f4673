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


def test_memory_is_filled_until_steps_begin() -> None:
    for _ in range(2):  # the second time as another job in the same process
        determinism.apply("elastic", 1)
        assert torch.empty(8).isnan().all()
        determinism.settle("elastic")
        assert not torch._C._get_deterministic_fill_uninitialized_memory()
    torch._C._set_deterministic_fill_uninitialized_memory(True)


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


@pytest.mark.skipif(kinds.host_capability().isa == "other", reason="this CPU has no kind but cpu")
def test_roots_and_arcs_at_the_lowest_profile_do_not_depend_on_the_maker_of_the_cpu() -> None:
    """MKL's approximate about one root in five; IEEE 754 leaves one result, and libm has one code without FMA."""
    code = """
import numpy as np, torch
from isoscale.core.numerics import determinism
determinism.apply("heterogeneous", 1, "sse")
for dtype in (torch.float32, torch.float64):
    x = torch.linspace(0.001, 0.999, 4_099, dtype=dtype)
    for part in (x, x[::3], x[:5], x[0], x[:4_098].view(2, -1).T):
        root = torch.from_numpy(np.asarray(np.sqrt(part.numpy())))
        into = torch.empty(0, dtype=dtype)
        torch.sqrt(part, out=into)
        for ours in (part.sqrt(), part.clone().sqrt_(), part.pow(0.5), part.clone().pow_(0.5), into):
            assert torch.equal(ours, root), (dtype, part.shape)
        for name, arc in {"atan": np.arctan, "asin": np.arcsin, "acos": np.arccos}.items():
            assert torch.equal(getattr(torch, name)(part), torch.from_numpy(np.asarray(arc(part.numpy())))), name
leaf = torch.tensor([4.0, 0.25], requires_grad=True)
leaf.sqrt().sum().backward()
assert leaf.grad.tolist() == [0.25, 1.0]
assert torch.tensor([-1.0]).sqrt().isnan().all() and torch.tensor([4]).sqrt().item() == 2.0
assert torch.tensor([4.0]).bfloat16().sqrt().dtype == torch.bfloat16 and torch.tensor([3.0]).pow(2).item() == 9.0
second = torch.rand(1_031, generator=torch.Generator().manual_seed(1))
parameter = torch.nn.Parameter(torch.zeros(1_031))
parameter.grad = second.clone()
torch.optim.Adam([parameter], betas=(0.0, 0.0), eps=0.0, lr=1.0).step()
squares = (second * second).numpy()
assert torch.equal(parameter, -second / torch.from_numpy(np.sqrt(squares))), "Adam takes other roots"
"""
    environment = kinds.executor_environment(os.environ, kinds.profile_named("sse"), 1)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
