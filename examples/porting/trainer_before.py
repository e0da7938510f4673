"""A Trainer class with snapshots from which it resumes by itself. In the shape of minGPT-ddp.

torchrun --nproc-per-node 3 examples/porting/trainer_before.py
"""

import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import Transformer, next_words
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


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
    def __init__(self, config, model, optimizer, train_set, test_set):
        self.config = config
        self.rank = int(os.environ["RANK"])
        self.train_loader = self._prepare(train_set, shuffle=True)
        self.test_loader = self._prepare(test_set, shuffle=False)
        self.epochs_run = 0
        self.iter_time, self.iter_dt = time.time(), 0.0
        self.model = model
        self.optimizer = optimizer
        if os.path.exists(config.snapshot_path):
            self._load_snapshot()
        self.model = DistributedDataParallel(self.model)

    def _prepare(self, dataset, shuffle):
        return DataLoader(dataset, self.config.batch_size, sampler=DistributedSampler(dataset, shuffle=shuffle, seed=0))

    def _load_snapshot(self):
        snapshot = Snapshot(**torch.load(self.config.snapshot_path, weights_only=True))
        self.model.load_state_dict(snapshot.model_state)
        self.optimizer.load_state_dict(snapshot.optimizer_state)
        self.epochs_run = snapshot.finished_epoch

    def _save_snapshot(self, epoch):
        snapshot = Snapshot(self.model.module.state_dict(), self.optimizer.state_dict(), epoch)
        torch.save(asdict(snapshot), self.config.snapshot_path)

    def _run_batch(self, source, targets, train):
        with torch.set_grad_enabled(train):
            loss = F.cross_entropy(self.model(source).flatten(0, 1), targets.flatten())
        if train:
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
            self.optimizer.step()
        return loss.item()

    def _run_epoch(self, epoch, loader, train):
        loader.sampler.set_epoch(epoch)
        self.model.train(train)
        for iteration, (source, targets) in enumerate(loader):
            loss = self._run_batch(source, targets, train)
            now = time.time()
            self.iter_dt, self.iter_time = now - self.iter_time, now
            if iteration % self.config.log_every == 0 and self.rank == 0:
                kind = "train" if train else "eval"
                print(f"epoch {epoch} iter {iteration} {kind} loss {loss:.4f} ({self.iter_dt * 1000:.0f} ms)")

    def train(self):
        for epoch in range(self.epochs_run, self.config.max_epochs):
            self._run_epoch(epoch, self.train_loader, train=True)
            if self.rank == 0 and (epoch + 1) % self.config.save_every == 0:
                self._save_snapshot(epoch + 1)
            self._run_epoch(epoch, self.test_loader, train=False)


def main():
    dist.init_process_group("gloo")
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    model = Transformer(causal=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    config = TrainerConfig(snapshot_path=sys.argv[sys.argv.index("--out") + 1])
    trainer = Trainer(config, model, optimizer, next_words(train=True), next_words(train=False))
    torch.manual_seed(0 + dist.get_rank())
    trainer.train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
