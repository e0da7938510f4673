"""BERT and ELECTRA from `transformers`, small, behind one face: words and masked places in, a `Prediction` out.

Attention is computed in plain steps ("eager"), because fused kernels do not return its probabilities. It has no
dropout: `transformers` returns probabilities after dropout, and guidance needs a distribution. First weights are as
wide as the library's for its own width of 768 and wider for narrower networks (see `_shape`). Nothing is downloaded.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
)

from isoscale.recipes.data.text import MASK, PAD

__all__ = ["BACKBONES", "Bert", "Electra", "Prediction"]

#: of the discriminator's loss against the generator's, as ELECTRA's authors have it
_DISCRIMINATOR = 50.0


class Prediction(NamedTuple):
    #: of the backbone alone, without guidance
    loss: torch.Tensor
    #: the word predicted for every position; of interest where one was masked
    words: torch.Tensor
    #: masked and predicted wrongly
    wrong: torch.Tensor
    #: probabilities, [layers, B, heads, Q, K]
    attention: torch.Tensor


class Bert(nn.Module):
    """Masked language modelling; a prediction is the likeliest word."""

    def __init__(self, size: int, *, length: int, width: int, layers: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = BertForMaskedLM(BertConfig(**_shape(size, length, width, layers, heads, dropout)))
        _call_once(self)

    def forward(self, words: torch.Tensor, masked: torch.Tensor) -> Prediction:
        out = self.encoder(words.masked_fill(masked, MASK), attention_mask=_visible(words), output_attentions=True)
        guess = out.logits.argmax(-1)
        loss = F.cross_entropy(out.logits[masked], words[masked])
        return Prediction(loss, guess, masked & (guess != words), torch.stack(out.attentions))

    def examination_loss(self, words: torch.Tensor, masked: torch.Tensor, forged: torch.Tensor) -> torch.Tensor:
        """Of filling in the masked words, `forged` or not."""
        guess: Prediction = self(words, masked)
        return guess.loss

    def choose(self, words: torch.Tensor, masked: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """The word for the one masked place of each sentence: of the whole vocabulary, `candidates` or not."""
        guess: Prediction = self(words, masked)
        return guess.words[masked]

    def features(self, words: torch.Tensor) -> torch.Tensor:
        """One vector a position, for fine-tuning."""
        hidden: torch.Tensor = self.encoder.bert(words, attention_mask=_visible(words)).last_hidden_state
        return hidden


class Electra(nn.Module):
    """Replaced-token detection. The generator fills masked places, the discriminator says which words are not genuine.

    Words are predicted by the generator: a position is wrong where it was filled with another word. The attention
    is the discriminator's, the part that is kept after pre-training. Places are filled with words drawn from the
    logical worker's stream; in evaluation from a seed, so that the same model always finds the same.

    The generator has one layer a quarter as wide. One that knows everything would put nothing wrong into a sentence,
    and there would be nothing to detect.
    """

    def __init__(self, size: int, *, length: int, width: int, layers: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        shape = _shape(size, length, width, layers, heads, dropout)
        small = shape | {
            "hidden_size": width // 4,
            "intermediate_size": width,
            "num_attention_heads": max(1, heads // 4),
            "num_hidden_layers": 1,
            "initializer_range": _spread(width // 4),
        }
        self.encoder = ElectraForPreTraining(ElectraConfig(**shape, embedding_size=width))
        self.generator = ElectraForMaskedLM(ElectraConfig(**small, embedding_size=width))
        self.generator.electra.embeddings = self.encoder.electra.embeddings
        self.generator.generator_lm_head.weight = self.encoder.electra.embeddings.word_embeddings.weight
        _call_once(self)

    def forward(self, words: torch.Tensor, masked: torch.Tensor) -> Prediction:
        visible = _visible(words)
        logits = self.generator(words.masked_fill(masked, MASK), attention_mask=visible).logits
        fill = _drawn(logits.detach(), None if self.training else torch.Generator().manual_seed(0))
        filled = torch.where(masked, fill, words)
        wrong = filled != words
        out = self.encoder(filled, attention_mask=visible, output_attentions=True)
        detection = F.binary_cross_entropy_with_logits(out.logits[visible], wrong[visible].float())
        loss = F.cross_entropy(logits[masked], words[masked]) + _DISCRIMINATOR * detection
        return Prediction(loss, filled, wrong, torch.stack(out.attentions))

    def examination_loss(self, words: torch.Tensor, masked: torch.Tensor, forged: torch.Tensor) -> torch.Tensor:
        """Of detecting words of `forged` in the masked places. The loss of training rises as the generator gets better,
        and so cannot tell how far the discriminator is."""
        visible = _visible(words)
        filled = torch.where(masked, forged, words)
        logits = self.encoder(filled, attention_mask=visible).logits
        return F.binary_cross_entropy_with_logits(logits[visible], (filled != words)[visible].float())

    def choose(self, words: torch.Tensor, masked: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """The word for the one masked place of each sentence: the candidate [B, C] that looks most genuine there."""
        suspicion = []
        for candidate in candidates.unbind(1):
            filled = torch.where(masked, candidate[:, None], words)
            suspicion.append(self.encoder(filled, attention_mask=_visible(words)).logits[masked])
        best = torch.stack(suspicion, 1).argmin(1, keepdim=True)
        return candidates.gather(1, best).squeeze(1)

    def features(self, words: torch.Tensor) -> torch.Tensor:
        """One vector a position, for fine-tuning."""
        hidden: torch.Tensor = self.encoder.electra(words, attention_mask=_visible(words)).last_hidden_state
        return hidden


BACKBONES: dict[str, type[Bert] | type[Electra]] = {"bert": Bert, "electra": Electra}


def _shape(size: int, length: int, width: int, layers: int, heads: int, dropout: float) -> dict[str, object]:
    return {
        "vocab_size": size,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": length,
        "type_vocab_size": 1,
        "pad_token_id": PAD,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": _spread(width),
        "attn_implementation": "eager",
    }


def _spread(width: int) -> float:
    """Of first weights: what makes a sum over `width` of them vary as much as with the library's 0.02 at width 768."""
    return 0.02 * math.sqrt(768 / width)


def _call_once(model: Bert | Electra) -> None:
    """In the first call that asks for attention `transformers` hooks into its modules, which no turn may do."""
    word = torch.full((1, 1), MASK)
    model.eval()
    with torch.no_grad():
        model(word, word == MASK)
    model.train()


def _visible(words: torch.Tensor) -> torch.Tensor:
    return words != PAD


def _drawn(logits: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """One word a position by its probability: the likeliest after adding Gumbel noise."""
    noise = torch.rand(logits.shape, generator=generator).clamp_min(1e-9).log().neg().clamp_min(1e-9).log().neg()
    return (logits + noise).argmax(-1)
