"""Attention guidance: where a prediction was wrong, attend less to the companions of the wrong word.

McMisP's idea (arXiv 2012.08789, abstracts of versions 1 and 2): at positions whose word is predicted wrongly, some
attention heads are trained to give less weight to input words that often keep company with the wrong prediction, and
more to the others. How much, where and by what measure is not in the abstracts; everything below is our choice.

    target    r_j = softmax over the unmasked words j of the sentence of  -score(prediction, word_j) / temperature
    guidance      = mean over guided heads of KL(r || attention of the position), summed over wrong positions and
                    divided by the number of masked ones
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

__all__ = ["attention_loss", "target_attention"]

#: attention is at least this, so that its logarithm is finite
_LEAST = 1e-9


def target_attention(score: torch.Tensor, companions: torch.Tensor, temperature: float) -> torch.Tensor:
    """Where each position should look, [B, Q, K]: to `companions` [B, K] only, the less the higher their `score`."""
    excluded = ~companions[:, None, :]
    # A finite least value: a row without any companion must not become NaN (it has no weight in the loss).
    return (-score / temperature).masked_fill(excluded, torch.finfo(score.dtype).min).softmax(-1)


def attention_loss(
    attention: torch.Tensor, target: torch.Tensor, wrong: torch.Tensor, masked: torch.Tensor
) -> torch.Tensor:
    """`attention` is [layers, B, heads, Q, K] of the guided heads, `target` [B, Q, K], `wrong` and `masked` [B, Q].

    The divisor is this logical worker's own count, like that of a mean loss under DDP: one over all workers would need
    an exchange in the middle of the step. It is the masked positions, not the wrong ones, so guidance fades as
    predictions improve.
    """
    log_attention = attention.clamp_min(_LEAST).log()
    divergence = F.kl_div(log_attention, target[None, :, None].expand_as(attention), reduction="none").sum(-1)
    by_position = divergence.mean((0, 2))
    return (by_position * wrong).sum() / masked.sum().clamp_min(1)
