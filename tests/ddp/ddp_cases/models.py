"""Which parameters take part: frozen, tied, unused, several models, recurrent and attention models."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ddp_cases.toolkit import Points, Tokens, case, fit, mlp, sgd


class Tied(nn.Module):
    """A frozen layer first, and one weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(12, 12).requires_grad_(False)
        self.inner = nn.Linear(12, 12)
        self.outer = nn.Linear(12, 12)
        self.outer.weight = self.inner.weight
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(torch.relu(self.frozen(x)))
        return self.head(torch.relu(self.outer(torch.relu(x))))


@case((4,), (1, 3), (2, 2), (1, 1, 1, 1))
@case((3,), (2, 1), order="tree")
def frozen_and_tied_parameters(job: Any) -> None:
    model = job.model(Tied())
    fit(job, model, sgd(job, model, weight_decay=0.01), Points(30))


class Reverse(torch.autograd.Function):
    """The generator climbs where the critic descends, in one backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad


def adversaries(job: Any) -> tuple[Any, Any, Any, Any]:
    generator, critic = job.model(mlp(5, 12)), job.model(mlp(12, 1, hidden=40))
    first = job.keep("generator-optimizer", torch.optim.Adam(generator.parameters(), lr=0.02))
    second = job.keep("critic-optimizer", torch.optim.SGD(critic.parameters(), lr=0.05))
    return generator, critic, first, second


@case((4,), (3, 1), (1, 1, 1, 1))
@case((3,), (1, 2), order="tree")
def adversarial_pair(job: Any) -> None:
    """Two models, two optimizers, one turn that uses both; the critic twice in one graph."""
    generator, critic, first, second = adversaries(job)
    for _ in job.epochs(2):
        for step in job.loader(Points(36), batch_size=3, shuffle=True):
            for x, _ in step:
                made = generator(torch.randn(len(x), 5))
                loss = F.softplus(-critic(x)).mean() + F.softplus(critic(Reverse.apply(made))).mean()
                loss.backward()
                step.log(loss=loss, made=made.mean())
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()


@case((4,), (2, 2), (1, 3), (1, 1, 1, 1))
def a_model_rests_in_some_steps(job: Any) -> None:
    """Every other step nobody touches the generator: its gradients stay what they are."""
    generator, critic, first, second = adversaries(job)
    loader = job.loader(Points(48), batch_size=3, shuffle=True)
    for _ in job.epochs(2):
        for step in loader:
            both = job.step % 2 == 1
            for x, _ in step:
                loss = F.softplus(-critic(x)).mean()
                if both:
                    loss = loss + F.softplus(critic(Reverse.apply(generator(x[:, :5])))).mean()
                loss.backward()
                step.log(loss=loss)
            first.step()  # on resting steps once more with the gradients of the step before
            second.step()
            second.zero_grad()


class Branches(nn.Module):
    """The batch decides which branches are used; `never` is used by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(12, 20)
        self.left, self.right, self.rare, self.never = (nn.Linear(20, 3) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.trunk(x))
        out = self.left(hidden) if x.sum() > 0 else self.right(hidden)
        return out + self.rare(hidden) if x[0, 0] > 1.2 else out


@case((4,), (1, 3), (1, 1, 1, 1))
@case((3,), (1, 1, 1), order="tree")
def parameters_unused_by_some_and_by_all(job: Any) -> None:
    model = job.model(Branches(), find_unused_parameters=True)
    fit(job, model, job.keep("optimizer", torch.optim.AdamW(model.parameters(), lr=0.05)), Points(48), batch_size=2)


@case((3,), (1, 2), (1, 1, 1))
@case((4,), (3, 1), order="tree")
def unused_parameters_hold_old_gradients(job: Any) -> None:
    """Not zeroed every step: whoever does not use a parameter adds what `.grad` held."""
    model = job.model(Branches(), find_unused_parameters=True, bucket_cap_mb=0.0005)
    optimizer = sgd(job, model, lr=0.02)
    loader = job.loader(Points(36), batch_size=2, shuffle=True)
    for _ in job.epochs(2):
        for step in loader:
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            if job.step % 3 == 0:
                optimizer.zero_grad(set_to_none=job.step % 2 == 0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 10, padding_idx=0)
        self.lstm = nn.LSTM(10, 12, num_layers=2, batch_first=True, dropout=0.1, bidirectional=True)
        self.head = nn.Linear(24, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out, _ = self.lstm(self.embed(tokens))
        return self.head(out[:, -1])


@case((4,), (1, 3), (1, 1, 1, 1))
def embedding_and_lstm(job: Any) -> None:
    model = job.model(Recurrent())
    fit(job, model, sgd(job, model), Tokens(40))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens)).mean(1))


@case((3,), (2, 1), (1, 1, 1))
def transformer(job: Any) -> None:
    model = job.model(Attention())
    fit(job, model, job.keep("optimizer", torch.optim.AdamW(model.parameters(), lr=1e-2)), Tokens(30))


class _Block(nn.Module):
    """With a norm of its own class, found by walking modules."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.mix = nn.Linear(12, 12)
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.mix(self.norm(x))


def _names_outside(module: nn.Module, forbidden: tuple[type, ...]) -> list[str]:
    """Parameters that lie in no module of these kinds, by recursion over children."""
    names = [f"{n}.{p}" for n, c in module.named_children() for p in _names_outside(c, forbidden)]
    names = [one for one in names if not isinstance(module.get_submodule(one.rpartition(".")[0]), forbidden)]
    return [*names, *module._parameters]


@case((3,), (1, 2))
def parameter_groups_by_module(job: Any) -> None:
    """Groups made by walking children, classes and types of the model that job.model has returned."""
    net = nn.Sequential(_Block(), nn.ReLU(), nn.Linear(12, 3))
    model = job.model(net)
    assert isinstance(model, nn.Sequential)
    assert [type(child).__name__ for child in model.children()] == ["_Block", "ReLU", "Linear"]
    assert next(iter(dict(model.named_modules()))) == ""
    decay = {n for n in _names_outside(model, (nn.LayerNorm,)) if not n.endswith("bias")}
    assert decay == {"0.scale", "0.mix.weight", "2.weight"}
    groups = [
        {"params": [p for n, p in model.named_parameters() if n in decay], "weight_decay": 0.1},
        {"params": [p for n, p in model.named_parameters() if n not in decay], "weight_decay": 0.0},
    ]
    optimizer = job.keep("optimizer", torch.optim.AdamW(groups, lr=0.01))
    fit(job, model, optimizer, Points(30))
