"""A training with Hugging Face's Trainer whose batch size may change; masks are drawn while batches are collated.

Words: `steps` trains by steps and not by epochs, `processes` reads in loader processes, `drop` drops the last batches,
`sequential` reads in order, `own` has a rule of its own, `undeclared` declares nothing; `wait` lingers in every step
until there is a file `hurry` in the folder for checkpoints, which is the first word.
"""

import sys
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset
from transformers import BertConfig, BertForMaskedLM, TrainerCallback, set_seed

from isoscale.integrations.transformers import Trainer, TrainingArguments

OUT, WORDS = sys.argv[1], set(sys.argv[2:])


class Lingering(TrainerCallback):
    def on_step_end(self, args, state, control, **rest):
        deadline = time.monotonic() + 0.3
        while "wait" in WORDS and not Path(OUT, "hurry").exists() and time.monotonic() < deadline:
            time.sleep(0.02)


def collate(rows):
    ids = torch.stack([row[0] for row in rows])
    chosen = torch.rand(ids.shape) < 0.3
    chosen[:, 0] = True
    return {"input_ids": ids.masked_fill(chosen, 1), "labels": ids.masked_fill(~chosen, -100)}


def rows(count, seed):
    return TensorDataset(torch.randint(2, 40, (count, 7), generator=torch.Generator().manual_seed(seed)))


def damped(old, new):
    for group in trainer.optimizer.param_groups:
        group["weight_decay"] = 0.1 * old / new


live = {} if "undeclared" in WORDS else {"batch_sizes": (2, 4, 8), "batch_rule": damped if "own" in WORDS else "sqrt"}
args = TrainingArguments(
    output_dir=OUT,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_train_epochs=3,
    max_steps=16 if "steps" in WORDS else -1,
    learning_rate=1e-3,
    eval_strategy="steps",
    eval_steps=4,
    save_strategy="steps",
    save_steps=9,
    logging_steps=1,
    dataloader_num_workers=2 if "processes" in WORDS else 0,
    dataloader_drop_last="drop" in WORDS,
    train_sampling_strategy="sequential" if "sequential" in WORDS else "random",
    report_to=[],
    disable_tqdm=True,
    **live,
)
set_seed(7)
config = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24)
trainer = Trainer(
    BertForMaskedLM(config),
    args,
    train_dataset=rows(150, 1),
    eval_dataset=rows(13, 2),
    data_collator=collate,
    callbacks=[Lingering()],
)
trainer.train()
