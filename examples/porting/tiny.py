"""What the scripts before and after porting share: three small models and their data, generated from seeds.

Real scripts import these from torchvision, transformers or a model.py of their own; porting does not touch them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

CLASSES, VOCABULARY, MASK, LENGTH = 4, 32, 31, 24


class Pictures(Dataset[Any]):
    """Striped 12 x 12 pictures whose class is the stripes' direction; the training half is flipped at random."""

    def __init__(self, *, train: bool) -> None:
        generator = torch.Generator().manual_seed(0 if train else 1)
        count = 192 if train else 64
        self.labels = torch.randint(CLASSES, (count,), generator=generator)
        angle = self.labels.view(-1, 1, 1) * torch.pi / CLASSES
        down, across = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
        stripes = torch.sin(down * torch.cos(angle) + across * torch.sin(angle))
        noise = torch.randn(count, 3, 12, 12, generator=generator)
        self.pictures = stripes.unsqueeze(1) + 0.8 * noise
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        picture = self.pictures[index]
        if self.train and torch.rand(()) < 0.5:
            picture = picture.flip(1, 2)  # half a turn: the direction stays
        return picture, self.labels[index]


def residual_network() -> nn.Module:
    return nn.Sequential(
        _Stem(16), _Block(16), _Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)
    )


class _Stem(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(out)))


def sentences(*, train: bool) -> torch.Tensor:
    """Rows of LENGTH + 1 tokens; each follows from the one before by a fixed step, with some noise."""
    generator = torch.Generator().manual_seed(2 if train else 3)
    rows, words = 192 if train else 48, VOCABULARY - 1
    tokens = torch.randint(words, (rows, LENGTH + 1), generator=generator)
    for place in range(1, LENGTH + 1):
        follows = torch.rand(rows, generator=generator) < 0.9
        tokens[:, place] = torch.where(follows, (3 * tokens[:, place - 1] + 1) % words, tokens[:, place])
    return tokens


def next_words(*, train: bool) -> TensorDataset:
    tokens = sentences(train=train)
    return TensorDataset(tokens[:, :-1], tokens[:, 1:])


class Transformer(nn.Module):
    """Logits for every place: of the next word (causal), or of the word there."""

    def __init__(self, *, causal: bool, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)
        self.causal = causal

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        later = nn.Transformer.generate_square_subsequent_mask(LENGTH) if self.causal else None
        return self.head(self.layers(self.words(tokens) + self.places, mask=later, is_causal=self.causal))


class Classifier(nn.Module):
    """Two classes of sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Transformer(causal=False)
        self.norm = nn.LayerNorm(VOCABULARY)
        self.classifier = nn.Linear(VOCABULARY, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.norm(self.encoder(tokens).mean(1)))
        return logits


def labelled_sentences(*, train: bool) -> TensorDataset:
    """Is the first word one of the upper half? The 47 sentences to evaluate make batches of unequal size."""
    tokens = sentences(train=train)[: 192 if train else 47]
    return TensorDataset(tokens[:, :-1], (tokens[:, 0] > VOCABULARY // 2).long())


def mask_words(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """A collate function: hides 15 % of the words, drawn anew for every batch. Targets elsewhere are -100."""
    tokens = torch.stack(rows)[:, :LENGTH]
    hidden = torch.rand(tokens.shape) < 0.15
    return tokens.masked_fill(hidden, MASK), tokens.masked_fill(~hidden, -100)


def parameter_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Weight decay for matrices only."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
