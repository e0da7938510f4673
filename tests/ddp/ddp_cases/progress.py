"""Progress and bookkeeping: numbers of steps, stopping, job.state, totals and means, learning rates."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ddp_cases.toolkit import Points, case, evaluate, fit, mlp, sgd


def one_step(job: Any, model: Any, optimizer: Any, step: Any) -> None:
    for x, y in step:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        step.log(loss=loss)
    optimizer.step()
    optimizer.zero_grad()


@case((4,), (1, 3), (1, 1, 1, 1))
def a_number_of_steps(job: Any) -> None:
    """Seven steps are one epoch of four and most of another."""
    model = job.model(mlp())
    optimizer = sgd(job, model)
    loader = job.loader(Points(45), batch_size=3, shuffle=True)
    for epoch in job.steps(7):
        job.state["epoch"] = epoch
        for step in loader:
            one_step(job, model, optimizer, step)
        job.state["left at"] = job.step


@case((4,), (1, 3), (1, 1, 1, 1))
def a_turn_asks_to_stop(job: Any) -> None:
    """Only the worker that draws a certain batch asks; the step is finished by all, and it is the last."""
    model = job.model(mlp())
    optimizer = sgd(job, model)
    for _ in job.epochs(5):
        for step in job.loader(Points(40), batch_size=3, shuffle=True):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
                if job.step == 5 and x[0, 0] > 0:
                    job.stop("a batch said so")
            optimizer.step()
            optimizer.zero_grad()


@case((4,), (2, 2))
def early_stopping_by_job_state(job: Any) -> None:
    """Best metric and patience live in job.state; the decision comes from totals and is the same everywhere."""
    model = job.model(mlp())
    optimizer = sgd(job, model, lr=0.5)
    val = job.loader(Points(14), batch_size=2, train=False)
    for _ in job.epochs(30):
        for step in job.loader(Points(20), batch_size=3, shuffle=True):
            one_step(job, model, optimizer, step)
        totals = evaluate(model, val)
        loss = totals["loss"] / totals["seen"]
        job.log(val_loss=loss)
        if loss < job.state.get("best", float("inf")):
            job.state.update(best=loss, bad=0)
        else:
            job.state["bad"] += 1
        if job.state["bad"] == 2:
            job.stop("no progress")


@case((3,), (1, 2), (1, 1, 1))
def leaving_the_loader_early(job: Any) -> None:
    """`break` out of the loader ends the epoch, everywhere alike."""
    model = job.model(mlp())
    optimizer = sgd(job, model)
    loader = job.loader(Points(40, augment=True), batch_size=3, shuffle=True)
    for epoch in job.epochs(3):
        for step in loader:
            one_step(job, model, optimizer, step)
            if step.index == epoch:
                break


@case((4,), (1, 3), (2, 2), (1, 1, 1, 1))
def totals_and_means(job: Any) -> None:
    """Integers exactly, floats in float64 in logical order, tensors of any shape, values that only some report."""
    model = job.model(mlp())
    optimizer = sgd(job, model)
    loader = job.loader(Points(41, augment=True), batch_size=3, shuffle=True)
    for epoch in job.epochs(2):
        for step in loader:
            for x, y in step:
                out = model(x)
                loss = F.cross_entropy(out, y)
                loss.backward()
                step.log(loss=loss, half=loss.detach().bfloat16(), number=3, third=1 / 3)
                step.log(loss=loss * 3)  # twice in a turn: the worker's value is the mean
                step.sum(seen=len(y), big=2**60 // 7, correct=(out.argmax(1) == y).sum(), tenth=0.1, loss=loss)
                step.sum(seen=1, matrix=torch.outer(x[0], x[0]), counts=torch.bincount(y, minlength=3))
                if x[0, 0] > 0.5:
                    step.log(positive=x[0, 0])
                    step.sum(positive=x[0, 0].double(), some=1)
            job.state[f"totals-{job.step}"] = dict(step.totals)
            job.state[f"means-{job.step}"] = dict(step.means)
            optimizer.step()
            optimizer.zero_grad()
        job.state[f"epoch-{epoch}"] = dict(loader.totals)


@case((3,), (2, 1))
def step_schedule(job: Any) -> None:
    model = job.model(mlp())
    optimizer = sgd(job, model)
    schedule = job.keep("schedule", torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
    for _ in job.epochs(3):
        for step in job.loader(Points(18), batch_size=3, shuffle=True):
            one_step(job, model, optimizer, step)
        schedule.step()


@case((4,), (1, 3))
def one_cycle_schedule(job: Any) -> None:
    model = job.model(mlp())
    optimizer = job.keep("optimizer", torch.optim.AdamW(model.parameters(), lr=0.01))
    loader = job.loader(Points(30), batch_size=3, shuffle=True)
    schedule = job.keep("schedule", torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2 * len(loader)))
    for _ in job.epochs(2):
        for step in loader:
            one_step(job, model, optimizer, step)
            schedule.step()


@case((4,), (2, 2))
def plateau_schedule(job: Any) -> None:
    model = job.model(mlp())
    optimizer = sgd(job, model, lr=0.5)
    schedule = job.keep("schedule", torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0))
    val = job.loader(Points(13), batch_size=2, train=False)
    for _ in job.epochs(4):
        for step in job.loader(Points(18), batch_size=3, shuffle=True):
            one_step(job, model, optimizer, step)
        schedule.step(evaluate(model, val)["loss"])
        job.state["rate"] = optimizer.param_groups[0]["lr"]


@case((4,), (1, 3), (1, 1, 1, 1))
def averaged_model_is_kept(job: Any) -> None:
    """An average of the parameters, updated after the optimizer and kept."""
    model = job.model(mlp())
    average = job.keep("average", torch.optim.swa_utils.AveragedModel(model))
    optimizer = sgd(job, model)
    fit(job, model, optimizer, Points(30), between=lambda _: average.update_parameters(model))


WORDS = torch.randint(0, 7, (500,), generator=torch.Generator().manual_seed(1))


def draw(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch from anywhere in the text, as iteration-based trainers draw it."""
    starts = torch.randint(len(WORDS) - 12, (size,))
    x = torch.stack([WORDS[i : i + 12] for i in starts.tolist()]).float()
    return x, x.sum(1).long() % 3


@case((4,), (1, 3), (1, 1, 1, 1))
def iterations_whose_batches_are_drawn_in_the_turn(job: Any) -> None:
    """No epochs and no data set; logical worker 0 alone evaluates, on its own stream, before a step's turns."""
    model = job.model(mlp())
    optimizer = sgd(job, model)
    evaluation = job.turns(2, train=False, only=0)
    for step in job.turns(7, samples=3):
        if step.index % 3 == 0:
            model.eval()
            for probe in evaluation:
                for rank in probe:
                    assert rank == probe.logical_rank == 0
                    x, y = draw(5)
                    with torch.no_grad():
                        probe.sum(loss=F.cross_entropy(model(x), y))
            model.train()
            job.state[f"evaluation {step.index}"] = evaluation.totals["loss"]
        for rank in step:
            assert rank == step.logical_rank < job.num_logical_workers == 4
            x, y = draw(3)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()


@case((4,), (1, 3), (2, 2), (1, 1, 1, 1))
def predictions_are_gathered_in_logical_order(job: Any) -> None:
    """Tensors of other sizes per worker, plain values, several per turn, some from one worker only; in training too."""
    model = job.model(mlp())
    optimizer = sgd(job, model)
    loader = job.loader(Points(28), batch_size=3, shuffle=True)
    val = job.loader(Points(17), batch_size=2, train=False)
    for _ in job.epochs(2):
        for step in loader:
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
                step.gather(loss=loss, who={"rank": step.logical_rank, "sizes": [len(x), None, "é"]})
            job.state[f"losses {job.step}"] = step.gathered
            optimizer.step()
            optimizer.zero_grad()
        predicted, places = [], []
        for step in val:
            for x, y in step:
                with torch.no_grad():
                    step.gather(predicted=model(x).argmax(1))
                step.gather(place=step.logical_rank)
                step.gather(place=(step.logical_rank, len(y)))
                if step.logical_rank == 2:
                    step.gather(last=y[-1:])
            predicted += step.gathered["predicted"]
            places += step.gathered["place"]
            job.state["last"] = step.gathered.get("last", [])
        job.state["predicted"], job.state["places"] = torch.cat(predicted), places
