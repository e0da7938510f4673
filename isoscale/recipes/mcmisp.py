"""Language pre-training that learns from its mistakes: BERT or ELECTRA with McMisP-style attention guidance.

    isoscale run isoscale/recipes/mcmisp.py --workers 4 --executors 2 -- --backbone bert --guidance 0.1

Where the model predicts a masked word wrongly, some attention heads are pulled away from the words that often keep
company with the wrong prediction. Company is counted while training goes on (`mcmisp_counts`): state that every
logical worker reads and no turn may change. `--guidance 0` is plain pre-training. The idea is that of arXiv
2012.08789; its formulas are not, see docs/recipes.md.

The text is a made-up language in which topic words mislead and one rare cue decides (`data.planted`). A predictor that
knows topics but no cues is right about 70 % of the time; on cue sentences, never.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

import isoscale
from isoscale.recipes.data.text import MASK
from isoscale.recipes.mcmisp_counts import Cooccurrence, everybodys, own_rows
from isoscale.recipes.mcmisp_guidance import attention_loss, target_attention
from isoscale.recipes.mcmisp_models import BACKBONES, Prediction
from isoscale.recipes.mcmisp_tasks import PlantedTask, Task, with_masks

__all__ = ["parse", "pretrain", "train"]

_NUM_SPECIAL = MASK + 1


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="McMisP-style pre-training")
    parser.add_argument("--backbone", choices=sorted(BACKBONES), default="bert")
    parser.add_argument("--guidance", type=float, default=0.1, help="weight of the guidance loss; 0: plain")
    parser.add_argument("--score", choices=["count", "information"], default="count", help="what makes a companion")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--window", type=_positive, default=8, help="words so far apart keep company")
    parser.add_argument("--warmup", type=int, default=20, help="steps without guidance: counts are empty at first")
    parser.add_argument("--merge-every", type=_positive, default=1, help="steps after which new counts come into force")
    parser.add_argument(
        "--guided-layers", type=_positive, default=1, help="from the last one back; half of their heads"
    )
    parser.add_argument("--width", type=_positive, default=64)
    parser.add_argument("--layers", type=_positive, default=2)
    parser.add_argument("--heads", type=_positive, default=4)
    parser.add_argument("--dropout", type=float, default=0.1, help="none in attention, whatever this is")
    parser.add_argument("--batch", type=_positive, default=8)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--rise", type=_positive, default=50, help="steps in which the rate comes up to --rate")
    parser.add_argument("--fall", action="store_true", help="all the while let it fall to zero by the last step")
    parser.add_argument("--samples", type=_positive, default=6400)
    parser.add_argument("--epochs", type=_positive, default=5)
    parser.add_argument("--examine-every", type=int, default=0, help="steps; 0: at the end of an epoch")
    return parser.parse_args(arguments)


def train(job: isoscale.Job) -> None:
    options = parse()
    pretrain(job, options, PlantedTask(options.samples))


def pretrain(job: isoscale.Job, options: argparse.Namespace, task: Task) -> tuple[Any, list[dict[str, float]]]:
    """Train on a task; the model, and what each examination found."""
    shape = {"length": task.length, "width": options.width, "layers": options.layers, "heads": options.heads}
    model = job.model(BACKBONES[options.backbone](task.size, **shape, dropout=options.dropout))
    optimizer = job.keep("optimizer", torch.optim.AdamW(model.parameters(), lr=options.rate))
    # A short last batch would be another shape of sum, so it is left out.
    masks = partial(with_masks, share=task.masked)
    loader = job.loader(task.train, batch_size=options.batch, shuffle=True, drop_last=True, collate_fn=masks)
    factor = partial(_factor, options, options.epochs * len(loader))
    schedule = job.keep("schedule", torch.optim.lr_scheduler.LambdaLR(optimizer, factor))
    validation = job.loader(task.validation, batch_size=64, train=False)
    counts = job.keep(
        "counts",
        Cooccurrence(task.size, num_special=_NUM_SPECIAL, window=options.window, merge_every=options.merge_every),
    )
    who = job.keep_per_worker("who", lambda logical_rank: {"logical_rank": logical_rank})
    found: list[dict[str, float]] = []

    for _ in job.epochs(options.epochs):
        for step in loader:
            for words, masked in step:
                guess = model(words, masked)
                loss = guess.loss
                if options.guidance and job.step >= options.warmup:
                    loss = loss + options.guidance * _guidance(guess, words, masked, counts, options)
                loss.backward()
                step.log(loss=guess.loss)
                step.sum(sentences=own_rows(words, who["logical_rank"], job.num_logical_workers))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            # The one place where counts change: every turn of the step has read those from before it.
            counts.add(everybodys(step.totals["sentences"]))
            if options.examine_every and job.step % options.examine_every == 0:
                found.append(_examine(job, task, model, validation))
        if not options.examine_every:
            found.append(_examine(job, task, model, validation))
    return model, found


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return int(text)


def _factor(options: argparse.Namespace, steps: int, step: int) -> float:
    """Of the rate, in straight lines."""
    return float(min(1.0, (step + 1) / options.rise) * (1 - step / steps if options.fall else 1.0))


def _guidance(
    guess: Prediction, words: torch.Tensor, masked: torch.Tensor, counts: Cooccurrence, options: argparse.Namespace
) -> torch.Tensor:
    score = counts.log_counts if options.score == "count" else counts.mutual_information
    companions = ~masked & (words >= _NUM_SPECIAL)
    target = target_attention(score(guess.words, words), companions, options.temperature)
    wrong = guess.wrong & companions.any(1, keepdim=True)
    guided = guess.attention[-options.guided_layers :, :, : max(1, options.heads // 2)]
    return attention_loss(guided, target, wrong, masked)


def _examine(job: isoscale.Job, task: Task, model: Any, validation: Any) -> dict[str, float]:
    model.eval()
    for step in validation:
        for batch in step:
            with torch.no_grad():
                step.sum(**task.examine(model, batch))
    model.train()
    result = task.result(validation.totals)
    job.log(**result)
    return {"step": job.step, **result}


if __name__ == "__main__":
    isoscale.run(train)
