"""Every rule of the turn, broken: the error names the logical worker, the line and the remedy."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_cases.toolkit import Points, mlp, sgd
from ddp_pool import Pool
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from isoscale.core.reduction.exchange import LocalExchange
from isoscale.errors import PositionError, TurnRuleError, UserError
from isoscale.runtime.training.execute import code_of, execute
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.types import JobSpec

Train = Callable[[Job], None]


class Silence:
    def step(self, **facts: Any) -> None: ...

    def logged(self, **facts: Any) -> None: ...

    def audited(self, **facts: Any) -> None: ...


def run_alone(train: Train, *, workers: int = 2) -> TrainingLoop:
    """All logical workers in this process."""
    spec = JobSpec(workers=workers, seed=3, audit_every=3)
    loop = TrainingLoop(spec, LocalExchange(workers), Silence(), train_code=code_of(train))
    execute(loop, train)
    return loop


def broken_rule(train: Train, *, at: str | None, rank: int | None = 0) -> str:
    """The message. `at` is what the line that the error names must contain; `rank` whose turn it was."""
    with pytest.raises(TurnRuleError) as caught:
        run_alone(train)
    assert caught.value.logical_rank == rank
    file, _, line = caught.value.location.rpartition(":")
    assert file == Path(__file__).name
    if at is not None:
        assert at in linecache.getline(__file__, int(line))
    return str(caught.value)


def refused(call: Callable[[Job], object]) -> str:
    """The message with which a set-up call is refused."""
    with pytest.raises(UserError) as caught:
        run_alone(lambda job: call(job) and None)
    return str(caught.value)


# ---- the optimizer and the loops ----


def test_optimizer_step_inside_a_turn() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        optimizer = sgd(job, model)
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

    assert "after the inner loop" in broken_rule(train, at="optimizer.step()")


@pytest.mark.parametrize("then", ["optimizer.step", "the next step", "another loader", "the end"])
def test_break_out_of_the_inner_loop(then: str) -> None:
    """Whatever comes next finds it out, and the line named is the loop's."""

    def train(job: Job) -> None:
        model = job.model(mlp())
        optimizer = sgd(job, model)
        loader = job.loader(Points(16), batch_size=2)
        for step in loader:
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
                break
            if then == "optimizer.step":
                optimizer.step()
            elif then != "the next step":
                break
        if then == "another loader":
            next(iter(loader))

    assert "job.stop" in broken_rule(train, at=None)


def test_return_out_of_the_inner_loop() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
                return

    assert "left before its last turn" in broken_rule(train, at=None)


def test_an_exception_of_the_script_stays_what_it_is() -> None:
    def train(job: Job) -> None:
        for step in job.loader(Points(16), batch_size=2):
            for _ in step:
                raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_alone(train)


def test_break_out_of_an_evaluation_step() -> None:
    def train(job: Job) -> None:
        job.model(mlp())
        for step in job.loader(Points(16), batch_size=2, train=False):
            for _ in step:
                break

    assert "left before its last turn" in broken_rule(train, at=None)


def test_step_is_not_iterated() -> None:
    def train(job: Job) -> None:
        job.model(mlp())
        for _step in job.loader(Points(16), batch_size=2):
            pass

    assert "not iterated" in broken_rule(train, at="for _step in", rank=None)


def test_step_is_iterated_twice() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            for _ in step:
                pass

    assert "iterated twice" in broken_rule(train, at="for _ in step", rank=None)


def test_loader_is_iterated_inside_a_turn() -> None:
    def train(job: Job) -> None:
        job.model(mlp())
        loader = job.loader(Points(16), batch_size=2)
        for step in loader:
            for _ in step:
                next(iter(loader))

    assert "inside a turn" in broken_rule(train, at="next(iter(loader))")


def test_steps_without_a_step() -> None:
    def train(job: Job) -> None:
        for _ in job.steps(3):
            pass

    with pytest.raises(UserError, match="committed no step"):
        run_alone(train)


# ---- forward and backward ----


def test_turn_without_backward() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y)

    assert "without backward()" in broken_rule(train, at=None)


def test_turn_without_forward() -> None:
    def train(job: Job) -> None:
        job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for _ in step:
                pass

    assert "without backward()" in broken_rule(train, at=None)


def test_only_the_second_worker_forgets_backward() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for turn, (x, y) in enumerate(step):
                loss = F.cross_entropy(model(x), y)
                if turn == 0:
                    loss.backward()

    broken_rule(train, at=None, rank=1)


def test_gradients_clipped_inside_a_turn() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    assert "after the inner loop" in broken_rule(train, at=None)


@pytest.mark.parametrize("how", ["replace", "clear", "zero"])
def test_gradients_altered_inside_a_turn(how: str) -> None:
    def alter(parameter: nn.Parameter) -> None:
        if how == "replace":
            parameter.grad = torch.ones_like(parameter)
        elif how == "clear":
            parameter.grad = None
        else:
            assert parameter.grad is not None
            parameter.grad.zero_()

    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
                alter(model[3].bias)

    assert "3.bias" in broken_rule(train, at=None)


def test_graph_not_built_through_forward() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model[3](model[0](x)), y).backward()

    assert "not built by calling the model" in broken_rule(train, at=None)


def test_second_backward_that_is_not_marked() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
                F.cross_entropy(model(x), y).backward()

    assert "step.accumulate()" in broken_rule(train, at=None)


def test_turn_that_only_accumulates() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                with step.accumulate():
                    F.cross_entropy(model(x), y).backward()

    assert "outside step.accumulate()" in broken_rule(train, at=None)


def test_accumulating_after_the_averaged_backward() -> None:
    """Stock DDP has exchanged by then: what is added later would stay each rank's own."""

    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
                with step.accumulate():
                    F.cross_entropy(model(x), y).backward()

    assert "then do the last" in broken_rule(train, at=None)


def test_accumulating_what_was_not_computed_under_it() -> None:
    """Stock DDP prepares its exchange in forward, so the first backward would be averaged, and its average again."""

    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                with step.accumulate():
                    loss.backward()
                F.cross_entropy(model(x), y).backward()

    assert "put forward and backward()" in broken_rule(train, at=None)


def test_parameter_without_gradient() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, _ in step:
                (model(x).detach() + model[3].bias).sum().backward()

    assert "find_unused_parameters=True" in broken_rule(train, at=None)


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_second_forward_with_buffers() -> None:
    def train(job: Job) -> None:
        model = job.model(normalised())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                (F.cross_entropy(model(x), y) + F.cross_entropy(model(-x), y)).backward()

    assert "broadcast_buffers=False" in broken_rule(train, at="model(-x)")


def test_train_mode_forward_under_no_grad() -> None:
    def train(job: Job) -> None:
        model = job.model(normalised())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                with torch.no_grad():
                    model(x)
                F.cross_entropy(model(x), y).backward()

    assert "model.eval()" in broken_rule(train, at="model(x)")


def test_both_are_allowed_where_every_worker_has_its_own_buffers() -> None:
    def train(job: Job) -> None:
        model = job.model(normalised(), broadcast_buffers=False)
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                with torch.no_grad():
                    model(x)
                (F.cross_entropy(model(x), y) + F.cross_entropy(model(-x), y)).backward()
            model.zero_grad()

    assert run_alone(train).step == 4


def test_backward_outside_turns() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            model(torch.ones(1, 12)).sum().backward()
            for x, y in step:
                F.cross_entropy(model(x), y).backward()

    assert "never averaged" in broken_rule(train, at="torch.ones(1, 12)", rank=None)


def test_backward_after_the_last_step() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
        model(torch.ones(1, 12)).sum().backward()

    assert "never averaged" in broken_rule(train, at="torch.ones(1, 12)", rank=None)


def test_backward_in_an_evaluation_turn() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2, train=False):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()

    assert "training loader" in broken_rule(train, at=".backward()")


class Stateful(nn.Module):
    """Counts its calls where no worker can call it its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how = nn.Linear(12, 3), how
        self.calls, self.history, self.cache, self.table = 0, [], {}, torch.zeros(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "number":
            self.calls += 1
        elif self.how == "list":
            self.history.append(1.0)
        elif self.how == "dict":
            self.cache["last"] = x.detach()
        elif self.how == "tensor":
            self.table += 1
        elif self.how == "new tensor":
            self.table = x.detach().mean(0)
        return self.inner(x)


@pytest.mark.parametrize("how", ["number", "list", "dict", "tensor", "new tensor"])
def test_forward_changes_an_attribute(how: str) -> None:
    def train(job: Job) -> None:
        model = job.model(nn.Sequential(Stateful(how)))
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()

    name = {"number": "calls", "list": "history", "dict": "cache"}.get(how, "table")
    message = broken_rule(train, at=None)
    assert f"0.{name}" in message
    assert "register_buffer" in message


class Codebook(nn.Module):
    """Writes a matrix buffer through `.data`, from the third call on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.inner, self.first = nn.Linear(12, 3), first
        self.register_buffer("codes", torch.zeros(2, 3))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x)
        self.calls += 1
        if self.calls > self.first:
            self.codes.data.add_(out.detach().mean())
        return out + self.codes.mean()


def test_buffer_written_past_the_version_counter_from_the_first_step_on() -> None:
    def train(job: Job) -> None:
        model = job.model(Codebook(first=0))
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            model.zero_grad()

    assert run_alone(train).step == 4


def test_buffer_written_past_the_version_counter_later() -> None:
    """Found at the next audit: too late to be repaired, so it must not pass."""

    def train(job: Job) -> None:
        model = job.model(Codebook(first=2))
        for step in job.loader(Points(24), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            model.zero_grad()

    assert "Codebook.codes" in broken_rule(train, at=None)


# ---- what may be set up, and when ----


@pytest.mark.parametrize("call", ["job.model", "job.keep", "job.keep_per_worker"])
def test_set_up_after_the_first_step(call: str) -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            late = {
                "job.model": lambda: job.model(mlp()),
                "job.keep": lambda: job.keep("average", mlp()),
                "job.keep_per_worker": lambda: job.keep_per_worker("counts", dict),
            }
            late[call]()

    assert f"{call}() after the first step" in broken_rule(train, at=None, rank=None)


@pytest.mark.parametrize("thaw", [False, True])
def test_set_of_trainable_parameters_changes(thaw: bool) -> None:
    def train(job: Job) -> None:
        net = mlp()
        net[0].bias.requires_grad_(not thaw)
        model = job.model(net)
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            model[0].bias.requires_grad_(thaw)

    assert "first: 0.bias" in broken_rule(train, at="for x, y in step", rank=None)


def test_buffer_changed_outside_turns_where_every_worker_has_its_own() -> None:
    def train(job: Job) -> None:
        model = job.model(normalised(), broadcast_buffers=False)
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            model[1].reset_running_stats()

    assert "broadcast_buffers=True" in broken_rule(train, at="for x, y in step", rank=None)


def test_sync_batchnorm() -> None:
    net = nn.SyncBatchNorm.convert_sync_batchnorm(normalised())
    assert "Sequential.1: SyncBatchNorm" in refused(lambda job: job.model(net))


def test_sparse_embedding() -> None:
    assert "sparse=False" in refused(lambda job: job.model(nn.Sequential(nn.Embedding(4, 2, sparse=True))))


def test_model_without_trainable_parameters() -> None:
    assert "no parameter requires" in refused(lambda job: job.model(nn.ReLU()))


def test_keep_of_something_without_state() -> None:
    assert "job.state" in refused(lambda job: job.keep("history", [1, 2]))


@pytest.mark.parametrize("name", ["model", "models", "step", "state"])
def test_keep_under_a_reserved_name(name: str) -> None:
    assert "reserved" in refused(lambda job: job.keep(name, mlp()))


def test_keep_twice_under_one_name() -> None:
    assert "kept already" in refused(lambda job: job.keep("average", mlp()) and job.keep("average", mlp()))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(8))


class Shapeless(Dataset[Any]):
    pass


@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        (Points(8), {"sampler": [1, 2]}, "sampler"),
        (Points(8), {"batch_sampler": [[1, 2]]}, "batch_sampler"),
        (Points(8), {"generator": torch.Generator()}, "generator"),
        (Points(8), {"colour": "red"}, "colour"),
        (Points(8), {"batch_size": 0}, "batch_size"),
        (Points(8), {"batch_size": None}, "batch_size"),
        (Points(8), {"train": False, "shuffle": True}, "every sample once"),
        (Points(8), {"train": False, "drop_last": True}, "every sample once"),
        (Points(0), {}, "non-empty"),
        (Stream(), {}, "map-style"),
        (Shapeless(), {}, "map-style"),
    ],
)
def test_loader_options(dataset: Dataset[Any], options: dict[str, Any], said: str) -> None:
    assert said in refused(lambda job: job.loader(dataset, **options))


# ---- reports and collectives ----


@pytest.mark.parametrize("what", ["totals", "means"])
def test_totals_read_too_early(what: str) -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
                step.sum(seen=len(y))
                getattr(step, what)

    assert "after the inner loop" in broken_rule(train, at="getattr(step, what)")


@pytest.mark.parametrize("call", ["log", "sum", "accumulate"])
def test_reports_outside_turns(call: str) -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            if call == "accumulate":
                with step.accumulate():
                    pass
            getattr(step, call)(seen=1)

    assert f"step.{call}() outside a turn" in broken_rule(train, at=None, rank=None)


def test_sum_of_something_else() -> None:
    def train(job: Job) -> None:
        for step in job.loader(Points(16), batch_size=2):
            for _ in step:
                step.sum(names="abc")

    with pytest.raises(UserError, match="names"):
        run_alone(train)


def test_collective_inside_a_turn() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        for step in job.loader(Points(16), batch_size=2):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                dist.all_reduce(loss.detach())

    assert "step.sum" in broken_rule(train, at="dist.all_reduce")


def test_collective_outside_turns() -> None:
    def train(job: Job) -> None:
        dist.barrier()

    assert "job.is_main" in broken_rule(train, at="dist.barrier()", rank=None)


def test_process_group_of_the_scripts_own() -> None:
    def train(job: Job) -> None:
        dist.init_process_group("gloo")

    broken_rule(train, at="dist.init_process_group", rank=None)


def test_guards_are_gone_after_the_job() -> None:
    """A notebook stays usable: hooks, guards and the model's watchers end with the job, even with a broken one."""
    model = mlp()

    def train(job: Job) -> None:
        job.model(model)
        dist.barrier()

    broken_rule(train, at="dist.barrier()", rank=None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 12)).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match="process group"):
        dist.barrier()


# ---- where it takes two executors ----


@pytest.mark.processes
@pytest.mark.parametrize("shares", [(1, 1), (2, 2), (1, 3)])
def test_executors_break_at_different_points(shares: tuple[int, ...], pool: Pool) -> None:
    with pytest.raises(PositionError) as caught:
        pool.elastic("ddp_cases.rules:breaks_at_different_points", shares=shares)
    assert "epoch 1" in caught.value.position
    assert "epoch 0" in caught.value.other_position


@pytest.mark.processes
def test_executors_set_different_learning_rates(pool: Pool) -> None:
    with pytest.raises(PositionError) as caught:
        pool.elastic("ddp_cases.rules:sets_different_learning_rates", shares=(1, 2))
    assert "[0.1]" in caught.value.position
    assert "step 5, learning rates [0.05]" in caught.value.other_position


@pytest.mark.processes
@pytest.mark.parametrize("shares", [(1, 1), (2, 1)])
@pytest.mark.parametrize("script", ["ends_at_different_steps", "evaluates_on_one_executor_only"])
def test_executors_do_different_things(script: str, shares: tuple[int, ...], pool: Pool) -> None:
    """An error that names both positions, not a wait without end."""
    with pytest.raises(PositionError):
        pool.elastic(f"ddp_cases.rules:{script}", shares=shares)


@pytest.mark.processes
def test_workers_use_different_models(pool: Pool) -> None:
    with pytest.raises(TurnRuleError, match="the same models in every turn"):
        pool.elastic("ddp_cases.rules:two_models_in_turns_that_differ", shares=(1, 2))


@pytest.mark.processes
def test_pool_survives_a_process_that_raises(pool: Pool) -> None:
    """The next case runs as if nothing had happened."""
    with pytest.raises(RuntimeError, match="no more"):
        pool.elastic("ddp_cases.rules:a_turn_raises_on_one_executor", shares=(1, 1))
    reference = pool.reference("ddp_cases.basics:plain_sgd", workers=2)
    assert pool.elastic("ddp_cases.basics:plain_sgd", shares=(1, 1)).difference_from(reference) is None
