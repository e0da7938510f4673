from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isoscale.errors import UserError
from isoscale.runtime.checkpoint.identity import Identity, check_identity
from isoscale.types import JobSpec

SAVED = Identity(
    workers=4,
    seed=1,
    order="ddp",
    determinism="elastic",
    threads=1,
    kinds=("cpu", "cpu-sse"),
    profile="sse",
    torch="2.13.0+cpu",
    script_sha256="a" * 64,
    script_args=("--lr", "0.1"),
    fingerprint="f1",
)
ANOTHER_JOB: list[dict[str, Any]] = [
    {"workers": 5},
    {"seed": 2},
    {"order": "tree"},
    {"determinism": "heterogeneous"},
    {"kinds": ("cpu", "cpu-avx2")},
]
OTHER_BITS: list[dict[str, Any]] = [
    {"threads": 2},
    {"profile": "shared-avx2"},
    {"torch": "2.12.0"},
    {"fingerprint": "f2"},
]
NEW_ARGS: dict[str, Any] = {"script_args": ("--lr", "0.2")}


def test_identity_of_a_job(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    spec = JobSpec(workers=3, seed=5, threads=2, kinds=("cpu",), script=str(script), script_args=("a",), out="x")
    identity = Identity.of(spec)
    assert identity.script_sha256 == hashlib.sha256(b"print()").hexdigest()
    assert identity.torch == torch.__version__
    assert Identity.of(replace(spec, out="y", until=7, audit_every=1)) == identity
    assert Identity.of(replace(spec, script="")).script_sha256 == ""
    assert Identity.of(spec, fingerprint="f").fingerprint == "f"


def test_the_same_job_goes_on_without_a_word() -> None:
    assert check_identity(SAVED, SAVED) == []
    assert check_identity(SAVED, replace(SAVED, kinds=("cpu-sse",))) == []
    assert check_identity(SAVED, replace(SAVED, fingerprint="")) == []
    assert check_identity(replace(SAVED, fingerprint=""), SAVED) == []


@pytest.mark.parametrize("accept_changes", [False, True])
@pytest.mark.parametrize("level", ["off", "elastic"])
@pytest.mark.parametrize("change", ANOTHER_JOB, ids=str)
def test_another_job_is_always_refused(change: dict[str, Any], level: Any, accept_changes: bool) -> None:
    saved = replace(SAVED, determinism=level)
    with pytest.raises(UserError) as caught:
        check_identity(saved, replace(saved, **change), accept_changes=accept_changes)
    assert caught.value.field == f"--{next(iter(change))}"


@pytest.mark.parametrize("change", [*OTHER_BITS, NEW_ARGS], ids=str)
def test_what_changes_bits_is_refused_unless_accepted(change: dict[str, Any]) -> None:
    now = replace(SAVED, **change)
    with pytest.raises(UserError, match="the checkpoint was written with"):
        check_identity(SAVED, now)
    assert len(check_identity(SAVED, now, accept_changes=True)) == 1


@pytest.mark.parametrize("change", OTHER_BITS, ids=str)
def test_bits_do_not_count_at_level_off(change: dict[str, Any]) -> None:
    saved = replace(SAVED, determinism="off")
    assert len(check_identity(saved, replace(saved, **change))) == 1


def test_arguments_count_at_level_off_too() -> None:
    saved = replace(SAVED, determinism="off")
    with pytest.raises(UserError, match=r"SCRIPT_ARGS=--lr 0.2: the checkpoint was written with --lr 0.1"):
        check_identity(saved, replace(saved, **NEW_ARGS))
    with pytest.raises(UserError, match="SCRIPT_ARGS=none"):
        check_identity(saved, replace(saved, script_args=()))


def test_another_script_is_a_warning() -> None:
    assert check_identity(SAVED, replace(SAVED, script_sha256="b" * 64)) == [
        "the script has changed since the checkpoint was written"
    ]


def test_every_field_has_a_rule() -> None:
    """A field that is added to an identity and to no rule would pass unseen."""
    changes = [*ANOTHER_JOB, *OTHER_BITS, NEW_ARGS, {"script_sha256": "b"}]
    assert {name for change in changes for name in change} == set(Identity.__dataclass_fields__)
