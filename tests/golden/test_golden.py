"""Digests and losses of whole runs, bit for bit what they were when recorded.

A difference is a change of results for every user: find the commit, and only if it is meant,
record anew with `pytest tests/golden --write-golden` and say so in the changelog.
"""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.parametrize("job_name", ["mlp", "conv", "transformer"])]


def test_this_machine_computes_what_the_recording_one_did(
    job_name: str, recorded: dict[str, Any], computed: dict[str, Any]
) -> None:
    there, here = recorded["machine"], computed["machine"]
    assert here["capability"] == "DEFAULT", "the caps of profile sse did not take hold"
    kernels = [name for name in there["kernels"] if here["kernels"].get(name) != there["kernels"][name]]
    assert here["fingerprint"] == there["fingerprint"], (
        f"{job_name}.json was recorded with fingerprint {there['fingerprint'][:16]} (torch {there['torch']}, "
        f"capability {there['capability']}, profile {there['profile']}), this machine has {here['fingerprint'][:16]} "
        f"(torch {here['torch']}, capability {here['capability']}); "
        f"kernels that differ: {', '.join(kernels) or 'new ones'}"
    )


@pytest.mark.parametrize("run", ["ddp-3", "ddp-4", "tree-3", "tree-4"])
def test_losses_and_digest(job_name: str, run: str, recorded: dict[str, Any], computed: dict[str, Any]) -> None:
    here, there = computed["runs"][job_name][run], recorded["runs"][run]
    first = next((i for i, (a, b) in enumerate(zip(here["losses"], there["losses"], strict=True), 1) if a != b), None)
    assert first is None, f"{job_name} {run}: loss of step {first} is not the recorded one"
    assert here["digest"] == there["digest"], f"{job_name} {run}: losses agree, the final state does not"


def test_runs_differ_where_they_should(job_name: str, recorded: dict[str, Any]) -> None:
    """Another order or another number of workers is another result, or the goldens would guard nothing."""
    runs = recorded["runs"]
    assert len({run["digest"] for run in runs.values()}) == 4
    assert all(len(run["losses"]) >= 6 for run in runs.values())
