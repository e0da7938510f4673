from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
import torch

from isoscale import kinds
from isoscale.core.numerics.fingerprint import combine_digests, differing_kernels, fingerprint, kernel_digests

# Prints, for a process at its environment's profile: kernel digests, and digests of a convolutional network's and of
# a transformer's parameters after a few steps of training.
PROBE = """
import json, sys
import torch
from torch import nn
from isoscale.core.numerics import determinism
from isoscale.core.encoding.digest import digest
from isoscale.core.numerics.fingerprint import kernel_digests

determinism.apply(sys.argv[1], 1)

class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)).mean(1))

def trained(model, inputs):
    targets = torch.arange(len(inputs)) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return digest({"model": model.state_dict()}, {"optimizer": optimizer.state_dict()})

torch.manual_seed(0)
convolutional = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 3, stride=2, padding=1),
    nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 24, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
)
print(json.dumps({
    "kernels": kernel_digests(),
    "convolutional": trained(convolutional, torch.randn(8, 3, 16, 16)),
    "transformer": trained(Transformer(), torch.randint(50, (8, 12))),
}))
"""

needs_avx2 = pytest.mark.skipif(
    kinds.host_capability().isa not in ("avx2", "avx512"), reason="this CPU has no AVX2: cpu-avx2 cannot run here"
)


def probe(profile: kinds.NumericProfile, level: str, base: dict[str, str]) -> dict[str, object]:
    environment = kinds.executor_environment(base, profile, 1)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, level], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def probes() -> dict[str, dict[str, object]]:
    """Each kind at its own best, and each started from the other's environment at the profile they have in common."""
    base = dict(os.environ)
    avx2, sse = kinds.profile_of("cpu-avx2"), kinds.profile_of("cpu-sse")
    common = kinds.common_profile(["cpu-avx2", "cpu-sse"])
    return {
        "avx2": probe(avx2, "elastic", base),
        "sse": probe(sse, "elastic", base),
        "common on avx2": probe(common, "heterogeneous", kinds.executor_environment(base, avx2, 2)),
        "common on sse": probe(common, "heterogeneous", kinds.executor_environment(base, sse, 1)),
    }


@needs_avx2
@pytest.mark.slow
@pytest.mark.processes
def test_kinds_compute_different_bits(probes: dict[str, dict[str, object]]) -> None:
    avx2, sse = probes["avx2"]["kernels"], probes["sse"]["kernels"]
    assert isinstance(avx2, dict)
    assert isinstance(sse, dict)
    assert combine_digests(avx2) != combine_digests(sse)
    assert {"conv_3x3", "gemm_odd", "softmax", "elementary"} <= set(differing_kernels(avx2, sse))
    assert probes["avx2"]["convolutional"] != probes["sse"]["convolutional"]
    assert probes["avx2"]["transformer"] != probes["sse"]["transformer"]


@needs_avx2
@pytest.mark.slow
@pytest.mark.processes
def test_kinds_agree_at_their_common_profile(probes: dict[str, dict[str, object]]) -> None:
    assert probes["common on avx2"] == probes["common on sse"]


def test_a_fingerprint_is_stable_and_hexadecimal() -> None:
    first, second = kernel_digests(), kernel_digests()
    assert first == second
    assert fingerprint() == combine_digests(dict(reversed(first.items())))
    assert len(bytes.fromhex(fingerprint())) == 32


def test_a_fingerprint_is_fast() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        fingerprint()
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            fingerprint()
            seconds.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    assert min(seconds) < 0.150


def test_a_fingerprint_neither_reads_nor_changes_global_state() -> None:
    expected = kernel_digests()
    torch.manual_seed(7)
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            assert kernel_digests() == expected
            assert not torch.is_grad_enabled()
        with torch.inference_mode():
            assert kernel_digests() == expected
            assert torch.is_inference_mode_enabled()
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
            assert kernel_digests() == expected
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(before, torch.get_rng_state())


def test_differing_kernels_are_named() -> None:
    mine = kernel_digests()
    theirs = {**mine, "gemm_odd": "0" * 64}
    assert differing_kernels(mine, theirs) == ("gemm_odd",)
    assert combine_digests(mine) != combine_digests(theirs)
