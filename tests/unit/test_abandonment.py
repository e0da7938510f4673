"""The state that is written beside an open step is the one that the step found, whatever the step is doing."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isoscale
from isoscale.core.encoding.codec import pack, unpack
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.seal import Sealed
from isoscale.protocol import messages as m
from isoscale.runtime.alone import ConsoleSink
from isoscale.runtime.checkpoint import state_file
from isoscale.runtime.checkpoint.files import Identity, Written
from isoscale.runtime.executor import abandonment as abandoning
from isoscale.runtime.executor.abandonment import Abandonment
from isoscale.runtime.executor.checkpoint_writer import CheckpointWriter
from isoscale.runtime.training.execute import execute
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.snapshot import take_snapshot
from isoscale.types import JobSpec
from tests.unit.test_codec import same

WORKERS, STEP = 3, 2


class Between:
    """Stands where a member of a job would, and keeps the state as it is between two steps."""

    def __init__(self) -> None:
        self.found: Any = None

    def hold(self, loop: TrainingLoop) -> int | None:
        return None

    def arrive(self, loop: TrainingLoop, loader: Loader) -> None:
        if loop.step == STEP:
            self.found = unpack(pack(take_snapshot(loop, loader, copy=True)), copy=True)

    def ready(self, loop: TrainingLoop) -> bool:
        return False

    def sealed(self, loop: TrainingLoop, sealed: Sealed) -> None: ...


@pytest.mark.parametrize("where", ["forward", "backward", "second turn", "last turn", "busy machine"])
def test_the_open_step_is_undone_in_a_copy_of_the_process(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "busy machine":  # where a copy takes longer to say its first word than the first one may

        def late(*args: Any, **kwargs: Any) -> Any:
            time.sleep(1.5 * abandoning._STUCK_S)
            return take_snapshot(*args, **kwargs)

        monkeypatch.setattr(abandoning, "take_snapshot", late)
    said: list[m.FromExecutor] = []
    told = threading.Event()

    def send(message: m.FromExecutor) -> None:
        said.append(message)
        told.set()

    spec = JobSpec(workers=WORKERS, out=str(tmp_path))
    writer = CheckpointWriter(lambda: tmp_path / "checkpoints", Identity.of(spec), "0", 0, send)
    abandonment, between = Abandonment(lambda: 1, lambda: writer), Between()

    def disturb(job: isoscale.Job, turn: int, place: str) -> None:
        """In the middle of a turn: another thread is told to write, and this one stays where it is."""
        wanted = {"forward": (0, "forward"), "busy machine": (0, "forward"), "backward": (0, "backward")}
        wanted |= {"second turn": (1, "forward"), "last turn": (WORKERS - 1, "backward")}
        if job.step == STEP and (turn, place) == wanted[where] and not said:
            abandonment.begin(7)
            assert told.wait(60)

    def train(job: isoscale.Job) -> None:
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
        model = job.model(net)
        optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        data = torch.utils.data.TensorDataset(torch.randn(60, 6), torch.randint(2, (60,)))
        loader = job.loader(data, batch_size=4, shuffle=True)
        counter = job.keep_per_worker("counter", lambda: {"turns": 0})
        for _ in job.epochs(1):
            for step in loader:
                for turn, (x, y) in enumerate(step):
                    counter["turns"] += 1
                    out = model(x + 0.1 * torch.rand(x.shape))
                    disturb(job, turn, "forward")
                    F.cross_entropy(out, y).backward()
                    disturb(job, turn, "backward")
                optimizer.step()
                optimizer.zero_grad(set_to_none=job.step % 2 == 0)  # sometimes gradients are left

    loop = TrainingLoop(spec, LocalExchange(WORKERS), ConsoleSink())
    loop.elastic = between  # type: ignore[assignment]
    loop.engine.can_abandon = True
    abandonment.loop = loop
    execute(loop, train)
    (message,) = said
    assert isinstance(message, m.CheckpointWritten)
    assert message.final
    assert message.step == STEP
    written = Written(**message.written)
    assert same(state_file.read(tmp_path / "checkpoints" / written.temporary_data), between.found)
