"""The job of `trainer_step`: a causal language model with Hugging Face's Trainer, whose steps are timed.

    torchrun --nproc_per_node 2 benchmarks/integrations/trainer_job.py stock SOCKET SETTLING STEPS ROUNDS WIDTH
    isoscale run benchmarks/integrations/trainer_job.py --workers 2 --executors 2 -- isoscale SOCKET ...

After SETTLING steps, and after each of ROUNDS rounds of STEPS steps, every process says so at SOCKET, with the seconds
of each step of the round, from one `on_step_end` to the next, and goes on when it gets an answer. So several such jobs
can take turns on a machine.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, set_seed

MODE = sys.argv[1] if __name__ == "__main__" else "stock"
if MODE == "stock":
    from transformers import Trainer, TrainingArguments
else:
    from isoscale.integrations.transformers import Trainer, TrainingArguments

LENGTH, BATCH = 64, 4


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int) -> None:
        self._rows = torch.randint(512, (count, LENGTH), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


class Rounds(TrainerCallback):
    def __init__(self, address: str, settling: int, steps: int) -> None:
        self._settling, self._steps = settling, steps
        self._seconds: list[float] = []
        self._before = time.perf_counter()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        now = time.perf_counter()
        self._seconds.append(now - self._before)
        if state.global_step >= self._settling and (state.global_step - self._settling) % self._steps == 0:
            self._socket.sendall(json.dumps(self._seconds).encode() + b"\n")
            self._seconds = []
            self._socket.recv(1)
        self._before = time.perf_counter()


def main() -> None:
    settling, steps, rounds, width = map(int, sys.argv[3:])
    set_seed(0)
    config = GPT2Config(vocab_size=512, n_positions=LENGTH, n_embd=width, n_layer=4, n_head=4, use_cache=False)
    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(),
        per_device_train_batch_size=BATCH,
        max_steps=settling + rounds * steps,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    data = Rows(2 * BATCH * arguments.max_steps)
    timing = Rounds(sys.argv[2], settling, steps)
    trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=data, callbacks=[timing])
    trainer.train()
    if MODE == "stock":
        # A process group of torch 2.13 that is taken down with its DDP now and then aborts or hangs.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
