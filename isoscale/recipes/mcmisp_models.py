"""BERT and ELECTRA from `transformers`, small, behind one face: words and masked places in, a `Prediction` out.

Attention is computed in plain steps ("eager"), because fused kernels do not return its probabilities. It has no
dropout: `transformers` returns probabilities after dropout, and guidance needs a distribution. Nothing is downloaded.
"""

from __future__ import annotations

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

    def __init__(self, size: int, *, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.encoder = BertForMaskedLM(BertConfig(**_shape(size, length, width, layers, heads)))
        _call_once(self)

    def forward(self, words: torch.Tensor, masked: torch.Tensor) -> Prediction:
        out = self.encoder(words.masked_fill(masked, MASK), attention_mask=_visible(words), output_attentions=True)
        guess = out.logits.argmax(-1)
        loss = F.cross_entropy(out.logits[masked], words[masked])
        return Prediction(loss, guess, masked & (guess != words), torch.stack(out.attentions))

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
    is the discriminator's, the part that is kept after pre-training. In evaluation places are filled with the likeliest
    word, in training with one drawn from the logical worker's stream.
    """

    def __init__(self, size: int, *, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        shape = _shape(size, length, width, layers, heads)
        small = shape | {
            "hidden_size": width // 2,
            "intermediate_size": width * 2,
            "num_attention_heads": max(1, heads // 2),
        }
        self.encoder = ElectraForPreTraining(ElectraConfig(**shape, embedding_size=width))
        self.generator = ElectraForMaskedLM(ElectraConfig(**small, embedding_size=width))
        self.generator.electra.embeddings = self.encoder.electra.embeddings
        self.generator.generator_lm_head.weight = self.encoder.electra.embeddings.word_embeddings.weight
        _call_once(self)

    def forward(self, words: torch.Tensor, masked: torch.Tensor) -> Prediction:
        visible = _visible(words)
        logits = self.generator(words.masked_fill(masked, MASK), attention_mask=visible).logits
        fill = _drawn(logits.detach()) if self.training else logits.argmax(-1)
        filled = torch.where(masked, fill, words)
        wrong = filled != words
        out = self.encoder(filled, attention_mask=visible, output_attentions=True)
        detection = F.binary_cross_entropy_with_logits(out.logits[visible], wrong[visible].float())
        loss = F.cross_entropy(logits[masked], words[masked]) + _DISCRIMINATOR * detection
        return Prediction(loss, filled, wrong, torch.stack(out.attentions))

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


def _shape(size: int, length: int, width: int, layers: int, heads: int) -> dict[str, object]:
    return {
        "vocab_size": size,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": length,
        "type_vocab_size": 1,
        "pad_token_id": PAD,
        "attention_probs_dropout_prob": 0.0,
        "attn_implementation": "eager",
    }


def _call_once(model: Bert | Electra) -> None:
    """In the first call that asks for attention `transformers` hooks into its modules, which no turn may do."""
    word = torch.full((1, 1), MASK)
    model.eval()
    with torch.no_grad():
        model(word, word == MASK)
    model.train()


def _visible(words: torch.Tensor) -> torch.Tensor:
    return words != PAD


def _drawn(logits: torch.Tensor) -> torch.Tensor:
    """One word a position by its probability: the likeliest after adding Gumbel noise."""
    noise = torch.rand_like(logits).clamp_min(1e-9).log().neg().clamp_min(1e-9).log().neg()
    return (logits + noise).argmax(-1)
