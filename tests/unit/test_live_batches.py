"""Batch sizes that change, in one process: plans and requests, what is told, what a snapshot holds, what is undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import isoscale
from isoscale.batches import BatchChange, parse_batch_plan
from isoscale.core.encoding import codec
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.streams import rng
from isoscale.errors import UserError
from isoscale.runtime.training.batches import Rebatched
from isoscale.runtime.training.execute import execute
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.snapshot import epoch_of, is_place_of, load_snapshot, take_snapshot
from isoscale.types import JobSpec

DATA = TensorDataset(torch.randn(61, 3, generator=torch.Generator().manual_seed(0)))


@pytest.fixture(autouse=True)
def leave_streams() -> Iterator[None]:
    with rng.isolated():
        yield


@dataclass(frozen=True)
class Wish:
    id: int
    size: int
    reason: str = "asked"


class Here:
    """The sink, and an elastic that wants other sizes at some steps, takes snapshots at others, and lands with one."""

    def __init__(self, wishes: dict[int, Wish] | None = None, at: int = -1, staged: Any = None) -> None:
        self.wishes, self.at, self.staged = wishes or {}, at, staged
        self.taken: Any = None
        self.changes: list[Rebatched] = []
        self.warnings: list[str] = []
        self.losses: dict[int, float] = {}
        self.noise: dict[int, float | None] = {}
        self.skipped: list[int] = []

    def step(
        self, *, step: int, values: Any, noise_scale: float | None = None, noise_skipped: int = 0, **rest: Any
    ) -> None:
        self.skipped += [noise_skipped] if noise_skipped else []
        self.losses[step] = values.means["loss"]
        assert set(values.means) == {"loss"}, "what is measured is not the script's business"
        if noise_scale is not None:
            self.noise[step] = noise_scale

    def rebatched(self, change: Rebatched, /) -> None:
        self.changes.append(change)

    def warned(self, *, message: str) -> None:
        self.warnings.append(message)

    def hold(self, loop: TrainingLoop) -> int | None:
        return None if self.staged is None else epoch_of(self.staged)

    def arrive(self, loop: TrainingLoop, loader: Loader) -> None:
        if self.staged is not None:
            if not is_place_of(self.staged, loader):
                loader.end_pass()
                return
            load_snapshot(loop, loader, self.staged)
            self.staged, loop.approaching = None, False
        if loop.step == self.at and self.taken is None:
            self.taken = codec.unpack(codec.pack(take_snapshot(loop, loader, copy=False)))

    def wish(self, loop: TrainingLoop) -> Wish | None:
        return self.wishes.get(loop.step + 1)

    def ready(self, loop: TrainingLoop) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def script(
    job: Job,
    *,
    rule: Any = "linear",
    sizes: Any = (2, 4, 8),
    stream: bool = False,
    seen: list[Any] | None = None,
    **options: Any,
) -> None:
    model = job.model(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1)))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    schedule = job.keep("schedule", torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch))
    live = {"batch_sizes": sizes} | ({} if callable(rule) or rule is None else {"batch_rule": rule})
    if stream:
        source = isoscale.samples(DATA, partition_samples=7)
        loader: Any = job.stream(source, batch_size=4, **live, **options)
    else:
        loader = job.loader(DATA, batch_size=4, shuffle=True, **live, **options)
    if callable(rule):
        job.on_batch_change(lambda old, new: rule(job, optimizer, old, new))
    for _ in job.epochs(3):
        for step in loader:
            for (x,) in step:
                loss = (model(x).sum(1) - x.sum(1)).square().mean()
                loss.backward()
                step.log(loss=loss)
                step.sum(rows=len(x))
            if seen is not None:
                seen.append((step.totals["rows"], loader.batch_size, job.samples))
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()


def go(here: Here, train: Callable[[Job], None] = script, plan: str | None = None, **fields: Any) -> TrainingLoop:
    spec = JobSpec(workers=2, seed=3, batch_plan=tuple(parse_batch_plan(plan)), **fields)
    loop = TrainingLoop(spec, LocalExchange(2), here)
    loop.elastic, loop.approaching = here, here.staged is not None
    execute(loop, train)
    return loop


def made(here: Here) -> list[tuple[int, int]]:
    return [(one.step, one.new) for one in here.changes if not one.error and not one.awaited and one.old != one.new]


@pytest.mark.parametrize("stream", [False, True])
def test_requests_come_to_the_same_as_the_plan_they_were_recorded_as(stream: bool) -> None:
    def train(job: Job) -> None:
        script(job, stream=stream)

    asked, planned = Here({3: Wish(1, 8), 5: Wish(2, 2), 6: Wish(2, 2)}), Here()
    loop = go(asked, train)
    assert made(asked) == [(3, 8), (5, 2)]
    assert loop.batches is not None
    assert loop.batches.history == [BatchChange(3, 8), BatchChange(5, 2)]
    assert go(planned, train, "3:8,5:2").state.digest() == loop.state.digest()
    assert planned.losses == asked.losses
    assert [one.learning_rates for one in asked.changes] == [(0.1,), (0.025,)]
    assert [one.factor for one in asked.changes] == [2.0, 0.25]


def test_sizes_and_samples_as_the_script_sees_them() -> None:
    seen: list[Any] = []
    go(Here(), lambda job: script(job, seen=seen), "2:8,4:2")
    # 61 samples are 31 for each of two; 2 steps of 4, 2 of 8, then 2 at a time, the last batch having one.
    assert [rows for rows, _, _ in seen[:8]] == [8, 8, 16, 16, 4, 4, 4, 2]
    assert [size for _, size, _ in seen[:5]] == [4, 4, 8, 8, 2]
    total = 0
    for rows, _, samples in seen:
        total += rows
        assert samples == total
    assert total == 3 * 62


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", [2, 3, 4, 9])
def test_a_snapshot_holds_what_is_pending(at: int, stream: bool) -> None:
    """Taken at the step of the change: the state before it, with the change to come."""

    def train(job: Job) -> None:
        script(job, stream=stream)

    wishes = {3: Wish(1, 8), 9: Wish(4, 2)}
    whole = Here(wishes, at=at)
    loop = go(whole, train)
    landed = Here({step: wish for step, wish in wishes.items() if step > at}, staged=whole.taken)
    again = go(landed, train)
    assert made(landed) == [change for change in made(whole) if change[0] >= at]
    assert again.state.digest() == loop.state.digest()
    assert landed.losses == {step: loss for step, loss in whole.losses.items() if step > at}
    assert again.samples == loop.samples
    assert again.batches is not None
    assert again.batches.history == [BatchChange(3, 8), BatchChange(9, 2)]


def test_how_long_a_pass_of_a_stream_is_counts_for_one_size_only() -> None:
    """A pass has six or seven steps of 4; of the passes after a change nobody has seen one."""
    here = Here({9: Wish(1, 2)})
    places: list[tuple[int, int]] = []
    step = here.step

    def seen(**facts: Any) -> None:
        places.append((facts["place"].batch, facts["place"].of))
        step(**facts)

    here.step = seen  # type: ignore[method-assign,assignment]
    go(here, lambda job: script(job, stream=True))
    begins = [number for number, (batch, _) in enumerate(places) if not batch]
    assert [of for _, of in places] == [0] * begins[1] + [begins[1]] * (9 - begins[1]) + [0] * (len(places) - 9)


def test_one_that_comes_in_mid_pass_does_not_know_how_long_passes_are() -> None:
    """The pass had steps of 4 before it came, and has steps of 2 now."""

    def train(job: Job) -> None:
        script(job, stream=True)

    whole = Here({3: Wish(1, 2)}, at=5)
    go(whole, train)
    landed = Here(staged=whole.taken)
    places: list[tuple[int, int]] = []
    step = landed.step

    def seen(**facts: Any) -> None:
        places.append((facts["place"].batch, facts["place"].of))
        step(**facts)

    landed.step = seen  # type: ignore[method-assign,assignment]
    go(landed, train)
    second = next(number for number, (batch, _) in enumerate(places) if not batch)
    third = next(number for number, (batch, _) in enumerate(places) if not batch and number > second)
    assert {of for _, of in places[:third]} == {0}
    assert {of for _, of in places[third:]} == {third - second}


def own_rule(job: Job, optimizer: torch.optim.Optimizer, old: int, new: int) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5 + 0.4 * float(torch.rand(()))
    job.state["changes"] = job.state.get("changes", 0) + 1
    next(iter(optimizer.param_groups[0]["params"])).data.add_(0.01)
    if new == 8:
        raise ValueError("not eight")


@pytest.mark.parametrize("stream", [False, True])
def test_a_rule_that_raises_leaves_nothing_behind(stream: bool) -> None:
    def train(job: Job) -> None:
        script(job, rule=own_rule, stream=stream)

    failed, without = Here({3: Wish(1, 8), 7: Wish(2, 2)}), Here({7: Wish(2, 2)})
    loop, other = go(failed, train), go(without, train)
    assert failed.changes[0].error == "ValueError: not eight"
    assert made(failed) == made(without) == [(7, 2)]
    assert loop.state.digest() == other.state.digest()
    assert loop.state.values == other.state.values == {"changes": 1}
    assert repr(failed.losses) == repr(without.losses)  # some may be NaN


def test_near_the_end_of_a_pass_the_change_comes_with_the_next_one() -> None:
    """31 samples of each: with drop_last 7 steps of 4, and 3 left, too few for 8."""
    seen: list[Any] = []
    here = Here({7: Wish(1, 8)})
    go(here, lambda job: script(job, seen=seen, drop_last=True))
    assert made(here) == [(7, 8)]
    assert [rows for rows, _, _ in seen] == [8] * 7 + [16] * 6
    # 6 steps of 4 leave 7: fewer than 8, so the pass ends a step early.
    seen.clear()
    here = Here({6: Wish(1, 8)})
    go(here, lambda job: script(job, seen=seen, drop_last=True))
    assert made(here) == [(6, 8)]
    assert [rows for rows, _, _ in seen] == [8] * 6 + [16] * 6


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("raises", [False, True])
def test_a_pass_that_ended_for_a_change_that_was_never_made_is_recorded(raises: bool, stream: bool) -> None:
    """In the last pass too few samples are left for 8: it ends early, and the job with it; or the rule raises then."""

    def rule(job: Job, optimizer: torch.optim.Optimizer, old: int, new: int) -> None:
        raise ValueError("no")

    def train(job: Job) -> None:
        options: dict[str, Any] = {"stream": True, "tail": "drop"} if stream else {"drop_last": True}
        script(job, rule=rule if raises else "linear", **options)

    # Passes of seven steps, of the stream of six or seven; three of them.
    whole = go(Here(), train).step
    at = (5 if stream else 6) if raises else whole - 1
    here = Here({at: Wish(1, 8)})
    loop = go(here, train)
    awaited = next(one for one in here.changes if one.awaited)
    assert (awaited.step, awaited.old, awaited.new, awaited.request) == (at, 4, 8, 1)
    assert [one.error for one in here.changes[1:]] == (["ValueError: no"] if raises else [])
    assert loop.step == len(here.losses) == whole - 1
    again = Here()
    recorded = JobSpec(workers=2, seed=3, batch_plan=(BatchChange(at, 8, made=False),))
    other = TrainingLoop(recorded, LocalExchange(2), again)
    execute(other, train)
    assert other.state.digest() == loop.state.digest()
    assert again.losses == here.losses


@pytest.mark.parametrize("stream", [False, True])
def test_a_size_that_no_pass_has_samples_for_is_refused_and_training_goes_on(stream: bool) -> None:
    def train(job: Job) -> None:
        options: dict[str, Any] = {"stream": True, "tail": "drop"} if stream else {"drop_last": True}
        script(job, sizes=(4, 64), **options)

    here = Here({6 if stream else 7: Wish(1, 64)})  # when a pass is over
    loop = go(here, train)
    assert [one.error for one in here.changes if not one.awaited] == [
        "a whole pass has not enough samples for a batch of this size"
    ]
    assert loop.state.digest() == go(Here(), train).state.digest()


def test_a_plan_overtakes_a_request_of_the_same_step_and_the_next_request_the_plan() -> None:
    here = Here({4: Wish(1, 8), 6: Wish(2, 8)})
    go(here, plan="4:2,9:4")
    assert made(here) == [(4, 2), (6, 8), (9, 4)]
    assert here.changes[0].error == "overtaken by the plan"
    assert here.changes[0].request == 1


def test_a_size_that_the_job_has_is_no_change() -> None:
    here = Here({3: Wish(1, 4)})
    loop = go(here, plan="0:4,2:4")
    assert made(here) == []
    assert [one.request for one in here.changes] == [0, 0, 1]
    assert loop.state.digest() == go(Here()).state.digest()


def test_what_was_recorded_is_done_again_and_nothing_else_before_that() -> None:
    """A life that came to step 8 changed at 3; the plan's entry at 5 raised then, and is not tried again."""
    spec = JobSpec(workers=2, seed=3, batch_plan=(BatchChange(5, 2), BatchChange(8, 8), BatchChange(10, 4)))
    here = Here({4: Wish(9, 2)})
    loop = TrainingLoop(spec, LocalExchange(2), here)
    loop.elastic, loop.recorded_batches = here, ((BatchChange(3, 8), BatchChange(7, 2)), 8)
    execute(loop, script)
    assert made(here) == [(3, 8), (7, 2), (8, 8), (10, 4)]


def test_what_was_recorded_at_the_end_of_a_pass_is_done_again() -> None:
    """8 steps of 4 are a pass: the change waits for the next one, and is not taken for one that was undone."""
    first, again = Here({8: Wish(1, 8)}), Here()
    loop = go(first)
    assert made(first) == [(8, 8)]
    other = TrainingLoop(JobSpec(workers=2, seed=3), LocalExchange(2), again)
    other.elastic, other.recorded_batches = again, ((BatchChange(8, 8),), 11)
    execute(other, script)
    assert made(again) == [(8, 8)]
    assert other.state.digest() == loop.state.digest()


def test_measured_factors_are_used_again() -> None:
    def train(job: Job) -> None:
        script(job, rule="adascale")

    here = Here()
    loop = go(here, train, "6:8", measure_noise=2)
    (change,) = here.changes
    assert change.measured
    assert change.factor is not None
    assert 1.0 <= change.factor <= 2.0
    recorded = JobSpec(workers=2, seed=3, batch_plan=(BatchChange(6, 8, change.factor),))
    again = TrainingLoop(recorded, LocalExchange(2), Here())
    execute(again, train)
    assert again.state.digest() == loop.state.digest()


def test_the_noise_scale_is_measured_every_few_steps_and_changes_nothing() -> None:
    here, plain = Here(), Here()
    loop = go(here, measure_noise=3)
    assert loop.state.digest() == go(plain).state.digest()
    assert loop.noise is not None
    scale = loop.noise.scale
    # The last batch of a pass has three samples for both: also equal. 24 steps of three passes.
    assert (scale.num_measured, scale.num_skipped) == (8, 0)
    assert set(here.noise) <= {3, 6, 9, 12, 15, 18, 21, 24}


def test_left_over_gradients_are_skipped() -> None:
    def train(job: Job) -> None:
        model = job.model(nn.Linear(3, 1))
        for _ in job.epochs(1):
            for step in job.loader(DATA, batch_size=4):
                for (x,) in step:
                    loss = model(x).mean()
                    loss.backward()
                    step.log(loss=loss)

    here = Here()
    loop = go(here, train, measure_noise=2)
    assert loop.noise is not None
    assert (loop.noise.scale.num_measured, loop.noise.scale.num_skipped) == (0, 4)
    assert here.skipped == [1, 2, 3, 4]
    assert not here.noise


@pytest.mark.parametrize(
    ("options", "plan", "said"),
    [
        ({"sizes": (2, 8)}, None, "batch_size=4 is not among them"),
        ({"sizes": (4, 8)}, "3:2", "declares batch_sizes=(4, 8)"),
        ({"rule": None}, "3:2", "what becomes of the learning rate"),
        ({"rule": "cubic"}, None, "no such rule"),
        ({"rule": "adascale"}, "3:2", "--measure-noise"),
        ({"batch_sampler": lambda rank, n: [[1], [2]]}, None, "batch_sampler decides"),
        ({"train": False}, None, "keeps its batch size"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], plan: str | None, said: str) -> None:
    with pytest.raises(UserError) as error:
        go(Here(), lambda job: script(job, **options), plan)
    assert said in str(error.value)


def test_declarations_that_contradict_each_other() -> None:
    def two(job: Job) -> None:
        job.loader(DATA, batch_size=4, batch_sizes=(4, 8), batch_rule="linear")
        job.loader(DATA, batch_size=4, batch_sizes=(4, 8), batch_rule="linear")

    def both(job: Job) -> None:
        job.loader(DATA, batch_size=4, batch_sizes=(4, 8), batch_rule="linear")
        job.on_batch_change(lambda old, new: None)

    def rule_alone(job: Job) -> None:
        job.loader(DATA, batch_size=4, batch_rule="linear")

    def function_alone(job: Job) -> None:
        job.on_batch_change(lambda old, new: None)

    for train, said in (
        (two, "one training loader"),
        (both, "one of them"),
        (rule_alone, "batch_sizes"),
        (function_alone, "declare"),
    ):
        with pytest.raises(UserError) as error:
            go(Here(), train)
        assert said in str(error.value)
    with pytest.raises(UserError, match="no loader of the script declares batch_sizes"):
        go(Here(), lambda job: _plain(job), "3:8")


def _plain(job: Job) -> None:
    model = job.model(nn.Linear(3, 1))
    for _ in job.epochs(1):
        for step in job.loader(DATA, batch_size=4):
            for (x,) in step:
                model(x).mean().backward()


def test_without_a_rule_a_request_changes_nothing() -> None:
    here = Here({3: Wish(1, 8)})
    loop = go(here, lambda job: script(job, rule=None))
    assert "learning rate" in here.changes[0].error
    assert loop.state.digest() == go(Here()).state.digest()


def test_totals_are_estimated_again_when_the_size_changes() -> None:
    """31 samples of each worker: 8 steps of 4, 16 of 2, 4 of 8."""
    here = Here()
    totals: list[int] = []
    step = here.step
    here.step = lambda **facts: (totals.append(facts["total"]), step(**facts))  # type: ignore[method-assign,assignment]
    go(here, plan="2:8,8:2")
    assert totals[:2] == [24, 24]
    # After two steps of 4: 23 samples are left, three steps of 8; then two passes of four.
    assert totals[2] == 2 + 3 + 2 * 4
    # In the second pass after three steps of 8: 7 left, four steps of 2; then a pass of sixteen.
    assert totals[-1] == len(totals) == 8 + 4 + 16
