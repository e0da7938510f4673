"""Loaders and randomness: uneven sizes, loader processes, per-worker state, code outside turns."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import isoscale
from ddp_cases.toolkit import Points, case, evaluate, fit, mlp, sgd


@case((4,), (1, 3), (2, 2))
@case((3,), (1, 1, 1))
def uneven_last_batch(job: Any) -> None:
    """41 samples: DistributedSampler pads, and the last batch of every worker is short."""
    model = job.model(mlp())
    fit(job, model, sgd(job, model), Points(41), batch_size=4)


@case((5,), (3, 2), (1, 1, 3))
def last_batch_is_dropped(job: Any) -> None:
    model = job.model(mlp())
    fit(job, model, sgd(job, model), Points(41), batch_size=3, drop_last=True)


@case((4,), (1, 3), (1, 1, 1, 1))
def less_data_than_one_global_batch(job: Any) -> None:
    """3 samples for 4 workers of batch size 8: one step of padded batches of one."""
    model = job.model(mlp())
    fit(job, model, sgd(job, model), Points(3), batch_size=8, epochs=3)
    job.state["totals"] = evaluate(model, job.loader(Points(2), batch_size=8, train=False))


@case((5,), (2, 3), (1, 1, 1, 1, 1))
def evaluation_leaves_some_workers_without_a_batch(job: Any) -> None:
    """Three samples for five workers, then eleven in batches of one; with statistics that must be worker 0's."""
    net = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    model = job.model(net)
    optimizer = sgd(job, model)
    few = job.loader(Points(3), batch_size=2, train=False)
    more = job.loader(Points(11), batch_size=1, train=False)
    for epoch in job.epochs(2):
        for step in job.loader(Points(30), batch_size=3, shuffle=True):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        job.state[f"few-{epoch}"] = evaluate(model, few)
        job.state[f"more-{epoch}"] = evaluate(model, more)


@case((4,), (3, 1))
def in_order_without_shuffling(job: Any) -> None:
    model = job.model(mlp())
    optimizer = sgd(job, model)
    for _ in job.epochs(2):
        for step in job.loader(Points(30), batch_size=3):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


@case((3,), (2, 1), (1, 1, 1))
def loader_processes_augment(job: Any) -> None:
    model = job.model(mlp())
    fit(job, model, sgd(job, model), Points(24, augment=True), num_workers=2)


@case((3,), (1, 2))
def one_loader_process_reads_one_batch_ahead(job: Any) -> None:
    model = job.model(mlp())
    fit(job, model, sgd(job, model), Points(25, augment=True), num_workers=1, prefetch_factor=1)


@case((3,), (2, 1))
def three_loader_processes_read_far_ahead(job: Any) -> None:
    """Farther than the pass goes."""
    model = job.model(mlp())
    fit(job, model, sgd(job, model), Points(40, augment=True), batch_size=2, num_workers=3, prefetch_factor=4)


def fit_stream(job: Any, **options: Any) -> None:
    """Partitions of 7 samples, the last one smaller, which logical workers take as they run dry."""
    model = job.model(mlp())
    optimizer = sgd(job, model)
    source = isoscale.samples(Points(61, augment=True), partition_samples=7)
    loader = job.stream(source, batch_size=3, shuffle_buffer=4, **options)
    for _ in job.epochs(2):
        for step in loader:
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


@case((3,), (2, 1), (1, 1, 1))
def a_stream(job: Any) -> None:
    fit_stream(job)


@case((3,), (2, 1), (1, 1, 1))
def a_stream_with_loader_processes(job: Any) -> None:
    fit_stream(job, num_workers=2, prefetch_factor=3)


@case((2,), (1, 1))
def loader_processes_persist(job: Any) -> None:
    """Only the first pass draws a base seed from the worker's stream."""
    model = job.model(mlp())
    fit(job, model, sgd(job, model), Points(16, augment=True), num_workers=2, persistent_workers=True, epochs=3)


class Memory:
    """Something a worker carries along: decides how hard the next batch is pushed."""

    def __init__(self, rank: int) -> None:
        self.push = 1.0 + rank / 7

    def update(self, loss: torch.Tensor) -> None:
        self.push = 0.9 * self.push + 0.1 * loss.item()

    def state_dict(self) -> dict[str, float]:
        return {"push": self.push}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.push = state["push"]


@case((4,), (3, 1), (2, 2), (1, 1, 1, 1))
def every_worker_has_things_of_its_own(job: Any) -> None:
    """A Generator seeded by rank, one seeded alike, an object, a dict; random numbers from a turn and a factory."""
    model = job.model(mlp())
    optimizer = sgd(job, model)
    noise = job.keep_per_worker("noise", lambda rank: torch.Generator().manual_seed(100 + rank))
    alike = job.keep_per_worker("alike", lambda: torch.Generator().manual_seed(5))
    memory = job.keep_per_worker("memory", Memory)
    drawn = job.keep_per_worker("drawn", lambda: {"sum": random.random(), "calls": 0})
    for _ in job.epochs(2):
        for step in job.loader(Points(30), batch_size=3, shuffle=True):
            for x, y in step:
                x = x + 0.1 * torch.randn(x.shape, generator=noise) + 0.1 * torch.randn(x.shape, generator=alike)
                loss = F.cross_entropy(model(x), y) * memory.push
                loss.backward()
                memory.update(loss)
                drawn["sum"] += random.random() + np.random.rand() * torch.rand(()).item()
                drawn["calls"] += 1
                step.log(loss=loss, push=memory.push, drawn=drawn["sum"], calls=drawn["calls"], keys=len(drawn))
            optimizer.step()
            optimizer.zero_grad()


@case((4,), (1, 3), (1, 1, 1, 1))
def noise_outside_turns(job: Any) -> None:
    """Code after the inner loop draws from the job-wide stream, which goes on from set-up and meets no worker's."""
    model = job.model(mlp())
    job.state["drawn"] = [random.random(), float(np.random.rand()), torch.rand(()).item()]

    def add_noise(step: Any) -> None:
        for p in model.parameters():
            p.grad.add_(torch.randn(p.shape), alpha=0.01 * random.random())
        job.state["drawn"].append(float(np.random.rand()))

    fit(job, model, sgd(job, model), Points(30), between=add_noise)
