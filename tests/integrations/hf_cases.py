"""Small trainings with Hugging Face's Trainer, as stock processes and on logical workers.

    torchrun --nproc_per_node N hf_cases.py stock OUT CASE...     the stock class, one process per rank
    ISOSCALE_WORKERS=N python hf_cases.py alone OUT CASE...       isoscale's class, all logical workers in one process
    isoscale run hf_cases.py ... -- elastic OUT CASE              isoscale's class on executors
    ISOSCALE_WORKERS=N python hf_cases.py refused OUT MISTAKE...  what isoscale's class says of it, in OUT/MISTAKE
    python hf_cases.py serve                                      both of the former, after one import for all

Each leaves OUT/CASE/result.pt: weights, optimizer, schedule, logs, metrics, flops.
"""

import json
import os
import random
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)

sys.path.insert(0, str(Path(__file__).parent))
from hf_offered import OFFERED

VOCABULARY = 64
#: the module whose classes this process uses
HF: Any = transformers


def use(mode: str) -> None:
    global HF
    if mode != "stock":
        from isoscale.integrations import transformers as elastic

        HF = elastic


class Rows(Dataset):
    """Token rows of different lengths, with a class each."""

    def __init__(self, count: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        lengths = torch.randint(6, 16, (count,), generator=draw).tolist()
        self.rows = [torch.randint(4, VOCABULARY, (length,), generator=draw) for length in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"input_ids": self.rows[i].tolist(), "labels": int(self.rows[i][0] % 3)}


class Images(Dataset):
    def __init__(self, count: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.pixels = torch.randn(count, 3, 16, 16, generator=draw)
        self.classes = torch.randint(0, 4, (count,), generator=draw)

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, i: int) -> dict[str, Any]:
        # An augmentation that draws while the sample is read.
        pixels = self.pixels[i].flip(-1) if random.random() < 0.5 else self.pixels[i]
        return {"pixel_values": pixels, "labels": self.classes[i]}


class Stream(IterableDataset):
    """The same rows for everybody, in an order of its own."""

    def __init__(self, count: int, seed: int) -> None:
        self.rows = [{"input_ids": row[:6], "labels": row[:6]} for row in Rows(count, seed).rows]

    def __iter__(self) -> Any:
        return iter(self.rows)


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    size = max(len(row["input_ids"]) for row in rows)
    ids, mask = torch.zeros(len(rows), size, dtype=torch.long), torch.zeros(len(rows), size, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row["input_ids"])] = torch.as_tensor(row["input_ids"])
        mask[i, : len(row["input_ids"])] = 1
    return {"input_ids": ids, "attention_mask": mask}


def for_causal(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = padded(rows)
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def for_masked(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Masks as DataCollatorForLanguageModeling does: draws from torch, and here from NumPy and Python too."""
    batch = padded(rows)
    chosen = torch.bernoulli(torch.full(batch["input_ids"].shape, 0.3)).bool() & (batch["attention_mask"] == 1)
    chosen[:, 0] = True
    labels = batch["input_ids"].masked_fill(~chosen, -100)
    noise = np.random.randint(4, VOCABULARY, tuple(batch["input_ids"].shape))
    ids = torch.where(chosen, torch.from_numpy(noise) if random.random() < 0.3 else torch.tensor(3), batch["input_ids"])
    return {**batch, "input_ids": ids, "labels": labels}


def for_classes(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {**padded(rows), "labels": torch.tensor([row["labels"] for row in rows])}


def for_translation(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = for_causal(rows)
    return {**batch, "labels": batch["labels"].flip(-1)}


def accuracy(shown: Any) -> dict[str, float]:
    logits = shown.predictions[0] if isinstance(shown.predictions, tuple) else shown.predictions
    return {"accuracy": float((logits.argmax(-1) == shown.label_ids).mean()), "count": len(shown.label_ids)}


def tokens(shown: Any) -> dict[str, float]:
    return {"sum": float(np.where(shown.predictions < 0, 0, shown.predictions).sum()), "count": len(shown.label_ids)}


def arguments(out: Path, **more: Any) -> Any:
    kind = more.pop("kind", None) or HF.TrainingArguments
    defaults = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        "logging_steps": 2,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }
    return kind(output_dir=str(out), **{**defaults, **more})


class RunningAccuracy:
    """Is shown batch after batch."""

    def __init__(self) -> None:
        self.right: list[Any] = []

    def __call__(self, shown: Any, compute_result: bool) -> dict[str, float]:
        self.right.append(shown.predictions.argmax(-1) == shown.label_ids)
        if not compute_result:
            return {}
        right, self.right = torch.cat(self.right), []
        return {"accuracy": float(right.float().mean()), "count": len(right), "loss": float(shown.losses.mean())}


def shown_all(shown: Any) -> dict[str, float]:
    return {**accuracy(shown), "loss": float(shown.losses.mean()), "inputs": int(shown.inputs.sum())}


def gpt(width: int = 32) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=width, n_layer=2, n_head=2))


def bert(kind: Any, **more: Any) -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    return kind(BertConfig(vocab_size=VOCABULARY, max_position_embeddings=32, **sizes, **more))


def causal(out: Path, *, width: int = 32, **more: Any) -> Any:
    args = arguments(out, **more)
    set_seed(7)
    return HF.Trainer(gpt(width), args, train_dataset=Rows(45, 1), eval_dataset=Rows(13, 2), data_collator=for_causal)


def masked(out: Path, **more: Any) -> Any:
    args = arguments(out, **{"eval_strategy": "steps", "eval_steps": 3, **more})
    set_seed(7)
    return HF.Trainer(
        bert(BertForMaskedLM), args, train_dataset=Rows(45, 1), eval_dataset=Rows(13, 2), data_collator=for_masked
    )


def classes(out: Path, **more: Any) -> Any:
    defaults = {"eval_strategy": "steps", "eval_steps": 2, "num_train_epochs": 3}
    callbacks, metrics = more.pop("callbacks", None), more.pop("metrics", accuracy)
    trainer = more.pop("trainer", lambda: HF.Trainer)
    args = arguments(out, **{**defaults, **more})
    set_seed(7)
    return trainer()(
        bert(BertForSequenceClassification, num_labels=3),
        args,
        train_dataset=Rows(45, 1),
        eval_dataset=Rows(13, 2),
        data_collator=for_classes,
        compute_metrics=metrics,
        callbacks=callbacks,
    )


def images(out: Path, **more: Any) -> Any:
    args = arguments(out, **{"eval_strategy": "epoch", "max_grad_norm": 0.5, **more})
    set_seed(7)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4)
    return HF.Trainer(
        ResNetForImageClassification(config),
        args,
        train_dataset=Images(45, 1),
        eval_dataset=Images(13, 2),
        compute_metrics=accuracy,
    )


def translation(out: Path, **more: Any) -> Any:
    defaults = {"predict_with_generate": True, "generation_max_length": 8, "eval_strategy": "epoch"}
    args = arguments(out, kind=HF.Seq2SeqTrainingArguments, **{**defaults, **more})
    set_seed(7)
    config = T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return HF.Seq2SeqTrainer(
        T5ForConditionalGeneration(config),
        args,
        train_dataset=Rows(45, 1),
        eval_dataset=Rows(13, 2),
        data_collator=for_translation,
        compute_metrics=tokens,
    )


def stream(out: Path, **more: Any) -> Any:
    args = arguments(out, **{"max_steps": 9, "gradient_accumulation_steps": 2, **more})
    set_seed(7)
    return HF.Trainer(gpt(), args, train_dataset=Stream(45, 1), eval_dataset=Rows(13, 2), data_collator=for_masked)


def offered(optim: str, schedule: str, **more: Any) -> Any:
    kwargs = {"optim": optim, "lr_scheduler_type": schedule, "max_steps": 8, "logging_steps": 1}
    return lambda out: causal(out, **kwargs, **more)


def logging_trainer() -> Any:
    """Its loss logs as it is computed, and asks whose turn it is."""

    class Own(HF.Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
            spread = outputs.logits.detach().float().var()
            if self.state.global_step % 2 == 0:
                self.log({"training" if model.training else "evaluating": spread.item(), "tensor": spread})
            if self.is_world_process_zero() and self.state.is_world_process_zero and self.args.should_log:
                self.log({"rank": self.args.process_index})
            return (loss, outputs) if return_outputs else loss

        def log(self, logs: dict[str, Any], *args: Any) -> None:
            if "tensor" in logs:
                logs["tensor"] = logs["tensor"].item() * 2
            super().log(logs, *args)

    return Own


def contrasting_trainer() -> Any:
    """Two forwards in one turn, with different dropout."""

    class Own(HF.Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
            one, other = model(**inputs), model(**inputs)
            apart = torch.nn.functional.mse_loss(one.logits, other.logits)
            loss = one.loss + other.loss + apart
            return (loss, one) if return_outputs else loss

    return Own


BEST = {"save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True, "save_total_limit": 1}
CASES = {
    "causal": causal,
    "causal-window": lambda out: causal(out, gradient_accumulation_steps=4, logging_steps=1),
    "causal-local": lambda out: causal(out, average_tokens_across_devices=False, gradient_accumulation_steps=2),
    "causal-bf16": lambda out: causal(out, bf16=True),
    "causal-neftune": lambda out: causal(out, neftune_noise_alpha=5.0),
    "causal-smooth": lambda out: causal(out, label_smoothing_factor=0.1, include_num_input_tokens_seen="all"),
    "causal-sgd": lambda out: causal(out, optim="sgd", lr_scheduler_type="cosine", warmup_steps=3, max_steps=11),
    "causal-adafactor": lambda out: causal(out, optim="adafactor", max_grad_norm=0.0, dataloader_drop_last=True),
    **{f"causal-{optim}-{schedule}": offered(optim, schedule, **more) for optim, schedule, more in OFFERED},
    "causal-lengths": lambda out: causal(out, train_sampling_strategy="group_by_length"),
    "causal-checkpointing": lambda out: causal(out, gradient_checkpointing=True),
    "causal-processes": lambda out: masked(out, dataloader_num_workers=2, gradient_accumulation_steps=2),
    "images-processes": lambda out: images(out, dataloader_num_workers=3, dataloader_prefetch_factor=1),
    "causal-save": lambda out: causal(out, save_strategy="steps", save_steps=4, gradient_accumulation_steps=2),
    "causal-epochs": lambda out: causal(out, save_strategy="epoch", logging_strategy="epoch", eval_strategy="epoch"),
    # Arguments that no other training sets, several at once.
    "causal-more": lambda out: causal(
        out,
        adam_beta1=0.8,
        adam_epsilon=1e-6,
        seed=5,
        data_seed=11,
        full_determinism=True,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        ddp_find_unused_parameters=False,
        ddp_broadcast_buffers=False,
        torch_empty_cache_steps=2,
        use_cache=True,
    ),
    "causal-bf16-evaluation": lambda out: causal(out, bf16_full_eval=True, prediction_loss_only=True),
    "causal-buckets": lambda out: causal(out, width=128, ddp_bucket_cap_mb=25, num_train_epochs=1),
    "causal-small-buckets": lambda out: causal(out, width=128, ddp_bucket_cap_mb=1, num_train_epochs=1),
    "causal-reentrant": lambda out: causal(
        out, gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True}
    ),
    "causal-momentum": lambda out: causal(out, optim="sgd", optim_args="momentum=0.9, nesterov=true", max_steps=5),
    "causal-unskipped": lambda out: causal(
        out,
        save_strategy="steps",
        save_steps=4,
        ignore_data_skip=True,
        restore_callback_states_from_checkpoint=True,
    ),
    "masked-lists": lambda out: masked(
        out, eval_do_concat_batches=False, eval_accumulation_steps=2, eval_delay=4, remove_unused_columns=False
    ),
    "classes-shown": lambda out: classes(
        out,
        metrics=shown_all,
        include_for_metrics=["inputs", "loss"],
        eval_accumulation_steps=2,
        label_names=["labels"],
        **{**BEST, "metric_for_best_model": "loss", "greater_is_better": False, "save_only_model": True},
    ),
    "classes-running": lambda out: classes(
        out, metrics=RunningAccuracy(), batch_eval_metrics=True, include_for_metrics=["loss"]
    ),
    "translation-beams": lambda out: translation(
        out, generation_num_beams=2, generation_config=GenerationConfig(decoder_start_token_id=0, pad_token_id=0)
    ),
    "masked": masked,
    "masked-window": lambda out: masked(out, gradient_accumulation_steps=3, eval_on_start=True),
    "masked-save": lambda out: masked(out, save_strategy="steps", save_steps=5),
    "classes": classes,
    "classes-best": lambda out: classes(
        out, **BEST, metric_for_best_model="accuracy", callbacks=[EarlyStoppingCallback(2)], logging_steps=1
    ),
    "classes-plateau": lambda out: classes(out, lr_scheduler_type="reduce_lr_on_plateau", batch_eval_metrics=False),
    "classes-logged": lambda out: classes(out, trainer=logging_trainer, gradient_accumulation_steps=2),
    "classes-contrasted": lambda out: classes(out, trainer=contrasting_trainer, ddp_broadcast_buffers=False),
    "images": images,
    "translation": translation,
    "stream": stream,
    "stream-save": lambda out: stream(out, save_strategy="steps", save_steps=4),
}


def collective(name: str) -> Any:
    def case(out: Path) -> None:
        class Own(HF.Trainer):
            def compute_loss(self, *args: Any, **options: Any) -> Any:
                return getattr(self.accelerator, name)(super().compute_loss(*args, **options))

        classes(out, trainer=lambda: Own).train()

    return case


def gathered_evaluation(out: Path) -> None:
    class Own(HF.Trainer):
        def evaluate(self, *args: Any, **options: Any) -> Any:
            return self.accelerator.gather_for_metrics(torch.ones(1))

    classes(out, trainer=lambda: Own).train()


def unprepared(method: str) -> Any:
    def case(out: Path) -> None:
        class Own(HF.Trainer):
            pass

        setattr(Own, method, lambda self, *args: DataLoader(Rows(45, 1), 4, collate_fn=self.data_collator))
        classes(out, trainer=lambda: Own).train()

    return case


def evaluated_before(out: Path) -> None:
    trainer = classes(out)
    trainer.evaluate()
    trainer.train()


def trained_twice(out: Path) -> None:
    trainer = classes(out, num_train_epochs=1)
    trainer.train()
    trainer.train()


def two_trainers(out: Path) -> None:
    classes(out, num_train_epochs=1).train()
    classes(out, num_train_epochs=1).train()


#: what a script may do only in stock processes
MISTAKES = {
    "gather": collective("gather"),
    "reduce": collective("reduce"),
    "gathered-evaluation": gathered_evaluation,
    "unprepared": unprepared("get_train_dataloader"),
    "unprepared-evaluation": unprepared("get_eval_dataloader"),
    "evaluated-before": evaluated_before,
    "trained-twice": trained_twice,
    "two-trainers": two_trainers,
    "search": lambda out: classes(out).hyperparameter_search(),
}


def result_of(trainer: Any, resume: str | None) -> dict[str, Any]:
    trained = trainer.train(resume_from_checkpoint=resume)
    metrics = trainer.evaluate()
    return {
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.lr_scheduler.state_dict(),
        "log": trainer.state.log_history,
        "metrics": metrics,
        "trained": trained.training_loss,
        "flos": trainer.state.total_flos,
        "steps": trainer.state.global_step,
        "best": (trainer.state.best_metric, trainer.state.best_global_step),
        "tokens": trainer.state.num_input_tokens_seen,
    }


def run_case(case: str, out: Path) -> None:
    """`case` is NAME, NAME=CHECKPOINT, or NAME=CHECKPOINT=FOLDER."""
    name, resume, folder, *_ = [*case.split("="), "", ""]
    place = out / (folder or name)
    trainer = CASES[name](place)
    result = result_of(trainer, resume or None)
    if trainer.is_world_process_zero():
        place.mkdir(parents=True, exist_ok=True)
        torch.save(result, place / "result.pt")


def run_mistake(name: str, out: Path) -> None:
    from isoscale.errors import IsoscaleError

    try:
        MISTAKES[name](out)
    except IsoscaleError as error:
        (out / name).write_text(str(error))


def do_steps_again() -> None:
    """Every third step, of training and evaluation, is thrown away when all its turns are done, and done again."""
    from isoscale.core.engine import StepAgainError, StepEngine

    finish, seal_end = StepEngine.finish, StepEngine.seal_end
    steps = {"number": 0, "again": False}

    def finish_or_throw_away(self: Any, *args: Any, **options: Any) -> Any:
        steps["number"] += 1
        if steps["number"] % 3 or steps["again"]:
            steps["again"] = False
            return finish(self, *args, **options)
        steps["again"] = True
        for model in self.models if self.turn.training else []:
            model.sync.finish()
        raise StepAgainError({})

    def seal_end_once(self: Any, *args: Any) -> Any:
        steps["again"] = True  # it has no turns that could be done again
        return seal_end(self, *args)

    StepEngine.finish, StepEngine.seal_end = finish_or_throw_away, seal_end_once


def run_cases(mode: str, out: Path, names: list[str], *, again: bool = False) -> None:
    use(mode)
    if again:
        do_steps_again()
    run = run_mistake if mode == "refused" else run_case
    for name in names:
        if mode not in ("alone", "refused"):
            run(name, out)
        elif not forked([lambda name=name: run(name, out)]):  # a process trains once
            sys.exit(f"{name} failed")


def forked(works: list[Any]) -> bool:
    """Each in a process of its own, all at once. Whether all went well."""
    children = []
    for work in works:
        if (child := os.fork()) == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                if code:
                    traceback.print_exc()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    return not any(codes)


def as_rank(rank: int, count: int, store: Any, out: Path, names: list[str]) -> None:
    """What torchrun gives a process, and what it runs."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    run_cases("stock", out, names)


def as_logical_workers(mode: str, count: int, out: Path, names: list[str]) -> None:
    os.environ["ISOSCALE_WORKERS"] = str(count)
    run_cases("alone" if mode == "again" else mode, out, names, again=mode == "again")


def serve() -> None:
    """A line of JSON asks for trainings: mode, count, out, cases. The answer is a line: whether all went well.

    Transformers are imported once, which takes longer than most of the trainings.
    """
    for line in sys.stdin:
        mode, count, out, names = json.loads(line)
        if mode == "stock":
            store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            works = [partial(as_rank, rank, count, store, Path(out), names) for rank in range(count)]
        else:
            works = [partial(as_logical_workers, mode, count, Path(out), names)]
        print(json.dumps(forked(works)), file=sys.__stdout__, flush=True)


def main() -> None:
    if sys.argv[1] == "serve":
        sys.stdout = sys.stderr  # what trainings print
        serve()
    else:
        run_cases(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])


if __name__ == "__main__":
    main()
