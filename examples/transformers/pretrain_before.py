"""Pre-training in the usual shape: masked tokens, gradient accumulation, a warm-up, checkpoints by steps."""

import torch
from torch.utils.data import TensorDataset
from transformers import BertConfig, BertForMaskedLM, set_seed
from transformers import Trainer, TrainingArguments

MASK, SPECIAL, VOCABULARY = 1, 2, 64


class Blocks(TensorDataset):
    def __getitem__(self, i: int) -> dict:
        return {"input_ids": super().__getitem__(i)[0]}


def mask(rows: list) -> dict:
    """A seventh of the tokens, chosen anew whenever a row is read."""
    ids = torch.stack([row["input_ids"] for row in rows])
    chosen = torch.bernoulli(torch.full(ids.shape, 0.15)).bool()
    return {"input_ids": ids.masked_fill(chosen, MASK), "labels": ids.masked_fill(~chosen, -100)}


args = TrainingArguments(
    output_dir="pretrained",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=20,
    learning_rate=1e-3,
    warmup_steps=5,
    lr_scheduler_type="cosine",
    logging_steps=5,
    save_steps=10,
    save_total_limit=1,
    bf16=True,
    use_cpu=True,
    report_to="none",
)
set_seed(args.seed)
blocks = Blocks(torch.randint(SPECIAL, VOCABULARY, (200, 16)).cumsum(1) % (VOCABULARY - SPECIAL) + SPECIAL)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
config = BertConfig(vocab_size=VOCABULARY, **sizes)
trainer = Trainer(BertForMaskedLM(config), args, train_dataset=blocks, data_collator=mask)
trainer.train()
trainer.save_model()
