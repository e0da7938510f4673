"""Every argument of the installed version is compared with the stock class, or refused, or decides nothing; so one that
a new version brings is looked at before that version is declared."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("accelerate")

import transformers
from transformers.trainer_pt_utils import AcceleratorConfig

from isoscale.integrations.transformers import refusals
from tests.integrations import hf_cases, test_transformers

_PRINTS = "what is printed, and by whom"
_TRACKERS = "what trackers call a run, and where they keep it"
_HUB = "needs push_to_hub, which is refused"
_GROUP = "of a process group, which a job does not have"
_SCRIPT = "read by scripts only"

#: why it decides nothing
DECIDES_NOTHING = {
    "log_level": _PRINTS,
    "log_level_replica": _PRINTS,
    "log_on_each_node": _PRINTS,
    "debug": "stops a training whose numbers overflow",
    "run_name": _TRACKERS,
    "project": _TRACKERS,
    "trackio_space_id": _TRACKERS,
    "trackio_bucket_id": _TRACKERS,
    "trackio_static_space_id": _TRACKERS,
    "hub_token": _HUB,
    "hub_private_repo": _HUB,
    "hub_model_id": _HUB,
    "hub_strategy": _HUB,
    "hub_always_push": _HUB,
    "hub_revision": _HUB,
    "ddp_backend": _GROUP,
    "ddp_timeout": _GROUP,
    "do_train": _SCRIPT,
    "do_eval": _SCRIPT,
    "do_predict": _SCRIPT,
    "resume_from_checkpoint": _SCRIPT,
    "local_rank": "taken from the command line of old launchers, and not used",
    "sortish_sampler": "not read by this version",
    "tf32": "of CUDA",
    "dataloader_pin_memory": "where batches lie in memory",
    "length_column_name": "read by the stock class's sampler, which deals for all logical workers",
    "optim_target_modules": "read by optimizers that need further packages",
    "liger_kernel_config": "needs use_liger_kernel, which is refused",
    "fsdp_config": "needs fsdp, which is refused",
}
REFUSED = {*refusals._RULES, "accelerator_config"}
FIELDS = {one.name: one for one in dataclasses.fields(transformers.Seq2SeqTrainingArguments)}


class GivenError(Exception):
    """What a training gives its arguments."""


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Arguments that a training which is held against the stock class gives another value than the default."""

    def give(**values: Any) -> Any:
        raise GivenError(values)

    monkeypatch.setattr(hf_cases, "HF", SimpleNamespace(TrainingArguments=give, Seq2SeqTrainingArguments=give))
    names: set[str] = set()
    for case in hf_cases.CASES.values():
        with pytest.raises(GivenError) as given:
            case(Path())
        names |= {name for name, value in given.value.args[0].items() if value != FIELDS[name].default}
    return names


def test_every_argument_is_accounted_for(compared: set[str]) -> None:
    assert {*FIELDS} == compared | REFUSED | {*DECIDES_NOTHING}
    assert {*DECIDES_NOTHING} & (compared | REFUSED) == set()


def test_every_training_is_held_against_the_stock_class() -> None:
    resumed = {case for case, _ in test_transformers.RESUMED}
    assert {*hf_cases.CASES} == {*test_transformers.CASES, *test_transformers.LONG_CASES} | resumed


def test_everything_that_configures_accelerate_is_accounted_for() -> None:
    # The former is looked at when accelerate has read it (`check_built`); the latter is how batches get to a GPU.
    others = {"gradient_accumulation_kwargs", "non_blocking"}
    assert {one.name for one in dataclasses.fields(AcceleratorConfig)} == others | {*refusals._ACCELERATOR}
