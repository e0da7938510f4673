"""A training with Hugging Face's Trainer that takes its time over every batch until there is a file `hurry` in the
folder that it is given, where it leaves its checkpoints too. So two executors are worth more than one, and steps last
until executors that import transformers have come, one after the other.

    trainer_job.py FOLDER [SIZE ...]

With sizes, its batch size may change: to read a batch takes as long whatever its size, so larger ones are worth more.
"""

import sys
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

from isoscale.integrations.transformers import Trainer, TrainingArguments


def collate(rows):
    if not (OUT / "hurry").exists():
        time.sleep(0.15)
    ids = torch.stack([row[0] for row in rows])
    return {"input_ids": ids, "labels": ids}


OUT, SIZES = Path(sys.argv[1]), [int(size) for size in sys.argv[2:]]
set_seed(3)
data = TensorDataset(torch.randint(32, (90, 8), generator=torch.Generator().manual_seed(1)))
trainer = Trainer(
    GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2)),
    TrainingArguments(
        output_dir=str(OUT),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=400,
        save_steps=100,
        logging_steps=20,
        report_to=[],
        disable_tqdm=True,
        **({"batch_sizes": SIZES, "batch_rule": "sqrt"} if SIZES else {}),
    ),
    train_dataset=data,
    data_collator=collate,
)
trainer.train()
