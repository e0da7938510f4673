"""The job of `trainer_step`: a causal language model with Hugging Face's Trainer, whose steps are timed.

    torchrun --nproc_per_node 2 benchmarks/integrations/trainer_job.py stock FILE STEPS WIDTH
    isoscale run benchmarks/integrations/trainer_job.py --workers 2 --executors 2 -- isoscale FILE STEPS WIDTH

FILE gets the seconds of every step but the first, as JSON: from one `on_step_end` to the next.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
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


class Timing(TrainerCallback):
    def __init__(self, path: Path) -> None:
        self._path, self._ends = path, list[float]()

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._ends.append(time.perf_counter())

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.is_world_process_zero:
            pairs = zip(self._ends, self._ends[1:], strict=False)
            self._path.write_text(json.dumps([after - before for before, after in pairs]))


def main() -> None:
    out, steps, width = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    set_seed(0)
    config = GPT2Config(vocab_size=512, n_positions=LENGTH, n_embd=width, n_layer=4, n_head=4, use_cache=False)
    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(),
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    model = GPT2LMHeadModel(config)
    Trainer(model=model, args=arguments, train_dataset=Rows(2 * BATCH * steps), callbacks=[Timing(out)]).train()


if __name__ == "__main__":
    main()
