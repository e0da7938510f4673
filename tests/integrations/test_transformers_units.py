"""Parts of the trainer on logical workers that need no second process, held against those that they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

pytest.importorskip("accelerate")

from accelerate.data_loader import prepare_data_loader, skip_first_batches
from accelerate.state import PartialState

from isoscale.core.context import ContextSwitch
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.streams import rng
from isoscale.errors import UserError
from isoscale.integrations.transformers import refusals, versions
from isoscale.integrations.transformers.gathering import Prediction, gather, truncated
from isoscale.integrations.transformers.keeping import is_timing
from isoscale.integrations.transformers.live_reading import LiveReading, check_loader
from isoscale.integrations.transformers.reading import Reading, index_batches
from isoscale.integrations.transformers.reference_live import Rest


@pytest.fixture(autouse=True)
def accelerate_knows_of_one_process() -> Iterator[None]:
    PartialState._reset_state()
    PartialState(cpu=True)
    yield
    PartialState._reset_state()


def prepared(num_samples: int, batch_size: int, number: int, count: int, *, drop_last: bool = False) -> Any:
    data = TensorDataset(torch.arange(num_samples))
    loader = DataLoader(data, batch_size, sampler=RandomSampler(data), drop_last=drop_last)
    return prepare_data_loader(
        loader, torch.device("cpu"), count, number, put_on_device=True, use_seedable_sampler=True, data_seed=3
    )


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_samples", [5, 16, 23, 24])
def test_every_worker_gets_the_batches_of_its_rank(num_samples: int, drop_last: bool, count: int) -> None:
    contexts = ContextSwitch(count, 0)
    contexts.start()
    orders, drawn = index_batches(prepared(num_samples, 4, 0, count, drop_last=drop_last), count, contexts)
    assert not drawn
    for rank in range(count):
        stock = prepared(num_samples, 4, rank, count, drop_last=drop_last)
        assert orders[rank] == [batch[0].tolist() for batch in stock]


def test_batches_that_a_checkpoint_has_behind_it() -> None:
    contexts = ContextSwitch(2, 0)
    contexts.start()
    orders, _ = index_batches(skip_first_batches(prepared(23, 4, 0, 2), 1), 2, contexts)
    for rank in range(2):
        assert orders[rank] == [batch[0].tolist() for batch in skip_first_batches(prepared(23, 4, rank, 2), 1)]


def live_reading(num_samples: int, count: int, *, per_step: int = 1, drop_last: bool = False) -> LiveReading:
    loader = prepared(num_samples, 4, 0, count, drop_last=drop_last)
    contexts = ContextSwitch(count, 0)
    contexts.start()
    reading = LiveReading(contexts, count, torch.device("cpu"), 4, loader)
    reading.use(loader, per_step=per_step)
    reading.begin()
    return reading


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("at", "size"), [(0, 2), (1, 8), (2, 2), (2, 16)])
def test_after_a_change_every_worker_gets_the_batches_of_a_loader_over_the_rest(
    count: int, drop_last: bool, at: int, size: int
) -> None:
    reading = live_reading(47, count, drop_last=drop_last)
    whole = prepared(47, 4, 0, count, drop_last=drop_last)
    samples = list(whole.batch_sampler.batch_sampler.sampler if count > 1 else whole.batch_sampler.sampler)
    rest = samples[at * count * 4 :]
    orders = [list(order) for order in reading._orders]
    if not reading.has_left(at, size):
        assert len(rest) < size * count
        return
    reading.resize(at, size, None)
    for rank in range(count):
        data = TensorDataset(torch.arange(47))
        loader = DataLoader(data, size, sampler=Rest(rest, SequentialSampler(data)), drop_last=drop_last)
        stock = prepare_data_loader(loader, torch.device("cpu"), count, rank, put_on_device=True)
        assert reading._orders[rank] == orders[rank][:at] + [batch[0].tolist() for batch in stock]
    assert reading.num_steps == len(reading._orders[0])


def test_who_joins_after_a_change_has_the_same_batches() -> None:
    here, there = live_reading(90, 2, per_step=2), live_reading(90, 2, per_step=2)
    here.resize(2, 8, None)
    here.resize(3, 2, None)
    there.load_state(here.state())
    assert there._orders == here._orders
    assert there.passage.state() == here.passage.state()
    assert there.needs_draw(4)
    assert not there.needs_draw(3)
    for reading in (here, there):  # the next pass begins with the last size
        reading.begin()
        assert len(reading._orders[0][0]) == 2


class Drawing(TensorDataset):
    """Every sample draws as it is read."""

    def __getitem__(self, i: int) -> Any:
        return torch.rand(()), super().__getitem__(i)[0]


def reading_at(step: int, streams: rng.Streams) -> tuple[Reading, ContextSwitch]:
    data = Drawing(torch.arange(24))
    loader = prepare_data_loader(DataLoader(data, 2), torch.device("cpu"), 2, 0, put_on_device=True)
    contexts = ContextSwitch(2, 0)
    contexts.start_alike(streams)
    reading = Reading(contexts, 2, torch.device("cpu"))
    reading.use(loader, per_step=2)
    reading.begin()
    return reading, contexts


def test_a_batch_ahead_is_read_again_where_its_worker_goes_on() -> None:
    """What another executor is told gives it the same next window."""
    streams = rng.seeded(5)
    here, contexts = reading_at(0, streams)
    there, elsewhere = reading_at(0, streams)
    here.mark()
    contexts.enter(1)
    here.window(1, 0)
    contexts.leave()
    there.adopt(1, here.changes_of(1), here=False)
    elsewhere.load_state_of(1, contexts.state_of(1))
    windows = []
    for reading, switch in ((here, contexts), (there, elsewhere)):
        switch.enter(1)
        windows.append(reading.window(1, 1))
        switch.leave()
    assert repr(windows[0]) == repr(windows[1])
    assert repr(contexts.state_of(1)) == repr(elsewhere.state_of(1))


def test_a_step_that_is_done_again_reads_the_same() -> None:
    reading, contexts = reading_at(0, rng.seeded(5))
    seen = []
    for _ in range(2):
        contexts.mark(shared=False)
        reading.mark()
        contexts.enter(0)
        seen.append(repr(reading.window(0, 0)))
        reading.losses[0] += 1
        contexts.rewind()
        reading.rewind()
    assert seen[0] == seen[1]
    assert reading.losses.tolist() == [0, 0]


def test_predictions_are_padded_and_joined_in_logical_order() -> None:
    def of(rank: int, length: int) -> Prediction:
        logits = torch.full((2, length, 3), float(rank))
        return Prediction(torch.full((2,), float(rank)), None, torch.full((2, length), rank), (logits, logits[:, 0, 0]))

    found = gather({1: of(1, 4), 0: of(0, 2)}, LocalExchange(2), lambda logits, labels: logits)
    assert found.losses.tolist() == [0, 0, 1, 1]
    assert found.labels.tolist() == [[0, 0, -100, -100]] * 2 + [[1, 1, 1, 1]] * 2
    assert found.logits[0].shape == (4, 4, 3)
    assert found.logits[1].tolist() == [0, 0, 1, 1]
    assert truncated(found.logits, 3)[0].shape == (3, 4, 3)


def test_untested_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    versions.check_versions()
    monkeypatch.setattr(versions, "version", lambda name: "5.23.0" if name == "transformers" else "1.15.0")
    with pytest.raises(UserError, match=r"transformers.*5\.23\.0.*>=5\.22,<5\.23"):
        versions.check_versions()


def test_seconds_are_told_from_metrics() -> None:
    assert is_timing("eval_runtime")
    assert is_timing("train_samples_per_second")
    assert not is_timing("eval_loss")


REFUSED: tuple[tuple[str, Any], ...] = (
    ("fsdp", "full_shard"),
    ("deepspeed", "zero.json"),
    ("parallelism_config", object()),
    ("torch_compile", True),
    ("torch_compile_backend", "eager"),
    ("torch_compile_mode", "reduce-overhead"),
    ("use_liger_kernel", True),
    ("fp16", True),
    ("fp16_full_eval", True),
    ("auto_find_batch_size", True),
    ("enable_jit_checkpoint", True),
    ("optim", "galore_adamw_layerwise"),
    ("optim", "lomo"),
    ("train_sampling_strategy", "batch_rebalance"),
    ("push_to_hub", True),
    ("skip_memory_metrics", False),
    ("ddp_static_graph", True),
    ("eval_use_gather_object", True),
    ("save_on_each_node", True),
    ("dataloader_persistent_workers", True),
    ("dataloader_multiprocessing_context", "forkserver"),
    ("dataloader_in_order", False),
    ("metric_for_best_model", "eval_runtime"),
    ("accelerator_config", {"even_batches": False}),
)


def test_every_refusal_is_tried() -> None:
    assert {name for name, _ in REFUSED} == {*refusals._RULES, "accelerator_config"}


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_cannot_be_done_is_refused_by_name(name: str, value: Any, tmp_path: Path) -> None:
    from isoscale.integrations.transformers import TrainingArguments, world

    with pytest.raises(UserError, match=name):
        TrainingArguments(output_dir=str(tmp_path), **{name: value})
    assert not world._entered  # nothing has begun


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch_sizes": (4, 16), "batch_rule": "linear"}, r"batch_sizes.*4, 16.*batch_size=8 is not among them"),
        ({"batch_sizes": 8}, "batch_sizes"),
        ({"batch_rule": "sqrt"}, "batch_rule.*never changes"),
        ({"batch_sizes": (8, 16), "batch_rule": "cubic"}, "batch_rule.*cubic"),
        ({"batch_sizes": (8, 16), "batch_rule": "adascale"}, "batch_rule.*adascale.*tokens"),
        ({"batch_sizes": (8, 16), "num_train_epochs": 1.5}, r"num_train_epochs.*1\.5.*max_steps"),
        ({"batch_sizes": (8,), "train_sampling_strategy": "group_by_length"}, "train_sampling_strategy.*batch_sizes"),
    ],
)
def test_sizes_that_cannot_change_are_refused_by_name(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    from isoscale.integrations.transformers import TrainingArguments, world

    with pytest.raises(UserError, match=said):
        TrainingArguments(output_dir=str(tmp_path), **given)
    assert not world._entered


def test_inputs_that_every_rank_would_see_alone_are_refused(tmp_path: Path) -> None:
    from isoscale.integrations.transformers import TrainingArguments

    with pytest.raises(UserError, match=r"include_for_metrics.*inputs.*batch_eval_metrics"):
        TrainingArguments(output_dir=str(tmp_path), batch_eval_metrics=True, include_for_metrics=["inputs"])


def test_data_that_ranks_do_not_share_cannot_change_its_size() -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(9)

    with pytest.raises(UserError, match=r"batch_sizes.*Endless.*map-style"):
        check_loader(DataLoader(Endless(), 2))
    with pytest.raises(UserError, match=r"batch_sizes.*WeightedRandomSampler"):
        check_loader(DataLoader(TensorDataset(torch.arange(4)), 2, sampler=WeightedRandomSampler([1.0] * 4, 4)))
    with pytest.raises(UserError, match=r"resume_from_checkpoint.*isoscale resume"):
        refusals.check_resumed("checkpoint-5")
    refusals.check_resumed(None)


def test_arguments_of_the_stock_class_are_refused() -> None:
    from isoscale.integrations.transformers import Trainer

    with pytest.raises(UserError, match=r"from isoscale\.integrations\.transformers import Trainer, TrainingArguments"):
        Trainer(args=object())
