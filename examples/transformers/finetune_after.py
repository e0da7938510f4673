"""Fine-tuning in the usual shape: arguments from the command line, evaluation in every epoch, the best model kept."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, set_seed
from isoscale.integrations.transformers import Trainer, TrainingArguments


@dataclass
class DataArguments:
    samples: int = field(default=96, metadata={"help": "rows to train on"})


class Rows(Dataset):
    """Rows of tokens; the class is decided by which of two tokens is the more frequent."""

    def __init__(self, count: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.rows = [draw.integers(2, 32, draw.integers(8, 24)) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict:
        row = self.rows[i]
        return {"input_ids": row, "label": int((row < 16).mean() > 0.5)}


def collate(rows: list) -> dict:
    ids = torch.zeros(len(rows), max(len(row["input_ids"]) for row in rows), dtype=torch.long)
    for target, row in zip(ids, rows, strict=True):
        target[: len(row["input_ids"])] = torch.as_tensor(row["input_ids"])
    return {"input_ids": ids, "attention_mask": ids != 0, "labels": torch.tensor([row["label"] for row in rows])}


def accuracy(shown) -> dict:
    return {"accuracy": float((shown.predictions.argmax(-1) == shown.label_ids).mean())}


def main() -> None:
    data_args, args = HfArgumentParser((DataArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(args.seed)
    config = BertConfig(vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=args,
        train_dataset=Rows(data_args.samples, seed=1),
        eval_dataset=Rows(50, seed=2),
        data_collator=collate,
        compute_metrics=accuracy,
    )
    result = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    trainer.log_metrics("train", result.metrics)
    trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    main()
