"""The McMisP recipe in one process: who sees which counts, the two backbones, the tasks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from isoscale.core.reduction.exchange import LocalExchange
from isoscale.recipes import mcmisp
from isoscale.recipes.data.planted import Planted
from isoscale.recipes.data.text import MASK
from isoscale.recipes.mcmisp_counts import Cooccurrence
from isoscale.recipes.mcmisp_models import BACKBONES, Bert, Electra
from isoscale.recipes.mcmisp_tasks import PlantedTask, TextTask, mask_of, with_masks
from isoscale.runtime.training.execute import code_of, execute
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.types import JobSpec

LANGUAGE = Planted(topics=2, words_per_topic=4, classes=2, cues_per_class=2, length=6)
SHAPE: dict[str, Any] = {"length": 6, "width": 16, "layers": 2, "heads": 4}
WORKERS = 3


class Silence:
    def step(self, **facts: Any) -> None: ...

    def logged(self, **facts: Any) -> None: ...

    def audited(self, **facts: Any) -> None: ...

    def streamed(self, **facts: Any) -> None: ...


class Watched(Cooccurrence):
    """Remembers what every turn read and what every step added."""

    read: list[torch.Tensor]
    added: list[torch.Tensor]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        type(self).read, type(self).added = [], []

    def log_counts(self, word: torch.Tensor, companion: torch.Tensor) -> torch.Tensor:
        self.read.append(self.pairs.clone())
        return super().log_counts(word, companion)

    def add(self, sentences: torch.Tensor) -> None:
        self.added.append(sentences)
        super().add(sentences)


class Hasty(Watched):
    """The classic mistake: a turn adds what it has seen, so the next worker of the same process sees it too."""

    def log_counts(self, word: torch.Tensor, companion: torch.Tensor) -> torch.Tensor:
        score = super().log_counts(word, companion)
        Cooccurrence.add(self, companion)
        return score


def train(*arguments: str) -> TrainingLoop:
    """Four steps of three logical workers."""
    options = mcmisp.parse(
        ["--width", "16", "--layers", "1", "--heads", "2", "--batch", "4", "--warmup", "0", "--epochs", "1", *arguments]
    )

    def run(job: Job) -> None:
        mcmisp.pretrain(job, options, PlantedTask(48, language=LANGUAGE))

    loop = TrainingLoop(JobSpec(workers=WORKERS, seed=3), LocalExchange(WORKERS), Silence(), train_code=code_of(run))
    execute(loop, run)
    assert loop.step == 4
    return loop


def same_counts_within_steps(read: list[torch.Tensor]) -> bool:
    steps = [read[i : i + WORKERS] for i in range(0, len(read), WORKERS)]
    return all(torch.equal(first, other) for first, *others in steps for other in others)


@pytest.fixture(scope="module")
def watched() -> type[Watched]:
    """What one training read and added: it trains once for all who look at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mcmisp, "Cooccurrence", Watched)
        train()
    return Watched


def test_no_worker_sees_what_another_counted_in_the_same_step(watched: type[Watched]) -> None:
    assert len(watched.read) == 4 * WORKERS
    assert same_counts_within_steps(watched.read)
    expected = Cooccurrence(LANGUAGE.size, num_special=MASK + 1, window=8)
    for step, sentences in enumerate(watched.added):
        assert torch.equal(watched.read[step * WORKERS], expected.pairs)
        assert len(sentences) == WORKERS * 4
        assert (sentences > MASK).all()  # whole sentences, without masks
        expected.add(sentences)


def test_the_check_above_finds_counts_that_change_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcmisp, "Cooccurrence", Hasty)
    train()
    assert not same_counts_within_steps(Hasty.read)


def test_each_sentence_of_an_epoch_is_counted_once(watched: type[Watched]) -> None:
    counted = sorted(torch.cat(watched.added).tolist())
    assert counted == sorted(LANGUAGE.sentences(48, 0).words.tolist())


@pytest.mark.parametrize("backbone", sorted(BACKBONES))
def test_guidance_changes_training_and_zero_weight_does_not(backbone: str) -> None:
    def digest(*arguments: str) -> str:
        return train("--backbone", backbone, *arguments).state.digest()

    plain, guided = digest("--guidance", "0"), digest("--guidance", "0.1")
    assert guided != plain
    assert digest("--guidance", "0.1", "--warmup", "4") == plain
    assert digest("--guidance", "0.1", "--score", "information") not in {plain, guided}


@pytest.mark.parametrize("backbone", sorted(BACKBONES))
def test_a_prediction_is_wrong_only_where_a_word_was_masked(backbone: str) -> None:
    torch.manual_seed(0)
    model = BACKBONES[backbone](LANGUAGE.size, **SHAPE)
    assert model.training
    words = LANGUAGE.sentences(8, 0).words
    masked = torch.zeros(8, 6, dtype=torch.bool).index_fill_(1, torch.tensor([1, 4]), True)
    guess = model(words, masked)
    assert torch.equal(guess.wrong, masked & (guess.words != words))
    assert guess.wrong.any()
    assert guess.attention.shape == (2, 8, 4, 6, 6)
    torch.testing.assert_close(guess.attention.sum(-1), torch.ones(2, 8, 4, 6))
    (guess.loss + guess.attention.square().sum()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_electra_draws_anew_in_training_and_the_same_in_evaluation() -> None:
    torch.manual_seed(0)
    model = Electra(LANGUAGE.size, **SHAPE)
    words, masked = LANGUAGE.sentences(64, 0).words, torch.ones(64, 6, dtype=torch.bool)
    assert not torch.equal(model(words, masked).words, model(words, masked).words)
    model.eval()
    stream = torch.get_rng_state()
    assert torch.equal(model(words, masked).words, model(words, masked).words)
    assert torch.equal(torch.get_rng_state(), stream)
    embeddings = model.encoder.electra.embeddings.word_embeddings.weight
    assert model.generator.generator_lm_head.weight is embeddings
    assert model.generator.electra.embeddings.word_embeddings.weight is embeddings


@pytest.mark.parametrize("backbone", sorted(BACKBONES))
def test_first_weights_are_wider_the_narrower_the_network(backbone: str) -> None:
    torch.manual_seed(0)
    shape = SHAPE | {"width": 48}
    weight = BACKBONES[backbone](200, **shape).encoder.get_input_embeddings().weight.detach()
    assert weight[5:].std().item() == pytest.approx(0.02 * 4, rel=0.05)


@pytest.mark.parametrize(("backbone", "body"), [("bert", "bert"), ("electra", "electra")])
def test_guidance_reaches_the_guided_layer_and_what_is_below(backbone: str, body: str) -> None:
    """By the gradient of guidance alone: in ELECTRA it is the discriminator's, and the generator has no part in it."""
    torch.manual_seed(0)
    model = BACKBONES[backbone](LANGUAGE.size, **SHAPE, dropout=0.0)
    words = LANGUAGE.sentences(16, 0).words
    masked = mask_of(torch.rand(words.shape))
    counts = Cooccurrence(LANGUAGE.size, num_special=MASK + 1, window=8)
    counts.add(words)
    options = mcmisp.parse(["--heads", "4"])
    guess = model(words, masked)
    assert guess.wrong.any()
    mcmisp._guidance(guess, words, masked, counts, options).backward()
    touched = {name for name, value in model.named_parameters() if value.grad is not None and value.grad.any()}
    layer = f"encoder.{body}.encoder.layer"
    for i in range(2):
        assert f"{layer}.{i}.attention.self.query.weight" in touched
        assert f"{layer}.{i}.attention.self.key.weight" in touched
    assert f"{layer}.0.output.dense.weight" in touched
    assert f"{layer}.1.attention.self.value.weight" not in touched
    assert not any(name.startswith("generator.electra.encoder") for name in touched)
    # Half of the heads: the rows of the others stay without a gradient.
    query = dict(model.named_parameters())[f"{layer}.1.attention.self.query.weight"].grad
    assert query is not None
    assert query[:8].any()
    assert not query[8:].any()


@pytest.mark.parametrize("backbone", sorted(BACKBONES))
def test_without_wrong_predictions_there_is_nothing_to_guide(backbone: str) -> None:
    torch.manual_seed(0)
    model = BACKBONES[backbone](LANGUAGE.size, **SHAPE)
    words = LANGUAGE.sentences(16, 0).words
    masked = mask_of(torch.rand(words.shape))
    counts = Cooccurrence(LANGUAGE.size, num_special=MASK + 1, window=8)
    counts.add(words)
    right = model(words, masked)._replace(words=words, wrong=torch.zeros_like(masked))
    assert mcmisp._guidance(right, words, masked, counts, mcmisp.parse(["--heads", "4"])) == 0


def test_electra_chooses_the_least_suspicious_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Electra(LANGUAGE.size, **SHAPE).eval()

    class Suspicious(torch.nn.Module):
        """Finds a word the more suspicious the farther its id is from 14."""

        def forward(self, words: torch.Tensor, **options: Any) -> Any:
            return type("Output", (), {"logits": (words - 14).abs().float()})

    model.encoder = Suspicious()
    words = torch.full((2, 6), 7)
    masked = torch.zeros(2, 6, dtype=torch.bool)
    masked[:, 5] = True
    candidates = torch.tensor([[13, 16, 20], [30, 18, 11]])
    assert model.choose(words, masked, candidates).tolist() == [13, 11]


def test_bert_chooses_from_all_words() -> None:
    torch.manual_seed(0)
    model = Bert(LANGUAGE.size, **SHAPE).eval()
    words, masked = LANGUAGE.sentences(5, 0).words, torch.zeros(5, 6, dtype=torch.bool)
    masked[:, 5] = True
    assert torch.equal(model.choose(words, masked, torch.zeros(5, 1)), model(words, masked).words[:, 5])


class Oracle:
    """Knows topics and no cues."""

    def choose(self, words: torch.Tensor, masked: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        return candidates[:, 0]


def test_who_knows_topics_only_reaches_the_baseline_and_no_cue_sentence() -> None:
    task = PlantedTask(16, language=LANGUAGE)
    batch = [task.validation[i] for i in range(512)]
    totals = task.examine(Oracle(), [torch.stack(column) for column in zip(*batch, strict=True)])
    result = task.result({name: int(value) for name, value in totals.items()})
    assert result["accuracy"] == pytest.approx(result["baseline"])
    assert 0.6 < result["baseline"] < 0.8
    assert result["cue_accuracy"] == 0
    assert totals["cues"] == 512 - totals["right"]


def test_a_text_is_examined_under_the_same_masks_every_time() -> None:
    rows = torch.randint(5, 9, (40, 20), generator=torch.Generator().manual_seed(0))
    one, two = TextTask(rows[:30], rows[30:], 9), TextTask(rows[:30], rows[30:], 9)
    for i in range(10):
        assert torch.equal(one.validation[i][1], two.validation[i][1])
        assert one.validation[i][1].sum() == 3
    model = Bert(9, length=20, width=16, layers=1, heads=2).eval()
    batch = [torch.stack(column) for column in zip(*(one.validation[i] for i in range(10)), strict=True)]
    words, masked, _ = batch
    with torch.no_grad():
        totals = one.examine(model, batch)
    result = one.result({name: float(value) for name, value in totals.items()})
    assert totals["masks"] == 30
    assert result["validation_loss"] == pytest.approx(model(words, masked).loss.item(), rel=1e-6)
    assert result["validation_loss"] == pytest.approx(math.log(9), rel=0.3)
    share = (torch.bincount(rows[:30].flatten(), minlength=9) + 1).double() / (600 + 9)
    assert one.trivial_loss["bert"] == pytest.approx(-share.log()[words[masked]].mean().item())


def test_masks_of_a_batch_are_drawn_from_the_stream_of_the_moment() -> None:
    sentences = [(row,) for row in LANGUAGE.sentences(8, 0).words]
    torch.manual_seed(5)
    words, masked = with_masks(sentences, 0.25)
    assert torch.equal(words, LANGUAGE.sentences(8, 0).words)
    assert masked.sum(1).tolist() == [2] * 8
    assert not torch.equal(with_masks(sentences, 0.25)[1], masked)
    torch.manual_seed(5)
    assert torch.equal(with_masks(sentences, 0.25)[1], masked)


def test_electra_is_examined_by_forgeries_that_are_not_its_own() -> None:
    torch.manual_seed(0)
    rows = LANGUAGE.sentences(40, 0).words
    task = TextTask(rows[:30], rows[30:], LANGUAGE.size)
    model = Electra(LANGUAGE.size, **SHAPE).eval()
    batch = [torch.stack(column) for column in zip(*(task.validation[i] for i in range(10)), strict=True)]
    words, masked, forged = batch
    before = task.examine(model, batch)["loss"].detach()
    with torch.no_grad():
        for weight in model.generator.electra.encoder.parameters():
            weight.add_(torch.randn_like(weight))
    assert task.examine(model, batch)["loss"] == before
    is_forged = masked & (forged != words)
    logits = model.encoder(torch.where(masked, forged, words)).logits
    expected = F.binary_cross_entropy_with_logits(logits, is_forged.float())
    assert before.item() / 10 == pytest.approx(expected.item(), rel=1e-5)
    share = is_forged.double().mean().item()
    assert task.trivial_loss["electra"] == pytest.approx(-share * math.log(share) - (1 - share) * math.log(1 - share))


@pytest.mark.parametrize(("length", "masks"), [(1, 1), (6, 1), (10, 2), (32, 5)])
def test_masks(length: int, masks: int) -> None:
    noise = torch.rand(length)
    mask = mask_of(noise)
    assert mask.sum() == masks
    assert mask[noise.argmin()]
