"""The training of trainer_before.py under isoscale.

isoscale run examples/porting/trainer_after.py --workers 3 --executors 1
"""

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tiny import Transformer, next_words

import isoscale


@dataclass
class TrainerConfig:
    max_epochs: int = 3
    batch_size: int = 8
    grad_norm_clip: float = 1.0
    save_every: int = 1
    log_every: int = 4
    snapshot_path: str = "snapshot.pt"


@dataclass
class Snapshot:
    model_state: dict[str, torch.Tensor]
    optimizer_state: dict[str, Any]
    finished_epoch: int


class Trainer:
    def __init__(self, job, config, model, optimizer, train_set, test_set):
        self.job = job
        self.config = config
        self.train_loader = job.loader(train_set, batch_size=config.batch_size, shuffle=True)
        self.test_loader = job.loader(test_set, batch_size=config.batch_size, train=False)
        self.iter_time, self.iter_dt = time.time(), 0.0
        job.unkept("iter_dt")
        self.model = job.model(model)
        self.optimizer = job.keep("optimizer", optimizer)

    def _save_snapshot(self, epoch):
        snapshot = Snapshot(self.model.state_dict(), self.optimizer.state_dict(), epoch)
        self.job.save(self.config.snapshot_path, asdict(snapshot))

    def _run_step(self, step, train):
        for source, targets in step:
            with torch.set_grad_enabled(train):
                loss = F.cross_entropy(self.model(source).flatten(0, 1), targets.flatten())
            if train:
                loss.backward()
            step.log(loss=loss)
        if train:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return step.means["loss"]

    def _run_epoch(self, epoch, loader, train):
        self.model.train(train)
        for step in loader:
            loss = self._run_step(step, train)
            now = time.time()
            self.iter_dt, self.iter_time = now - self.iter_time, now
            if step.index % self.config.log_every == 0 and self.job.is_main:
                kind = "train" if train else "eval"
                print(f"epoch {epoch} iter {step.index} {kind} loss {loss:.4f} ({self.iter_dt * 1000:.0f} ms)")

    def train(self):
        for epoch in self.job.epochs(self.config.max_epochs):
            self._run_epoch(epoch, self.train_loader, train=True)
            if (epoch + 1) % self.config.save_every == 0:
                self._save_snapshot(epoch + 1)
            self._run_epoch(epoch, self.test_loader, train=False)


def main(job: isoscale.Job):
    model = Transformer(causal=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    trainer = Trainer(job, TrainerConfig(), model, optimizer, next_words(train=True), next_words(train=False))
    trainer.train()


if __name__ == "__main__":
    isoscale.run(main)
