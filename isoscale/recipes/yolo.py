"""A one-stage detector in the manner of YOLO, without anchors, on generated scenes of ellipses, boxes and triangles.

    isoscale run recipe:yolo --workers 4 --executors 2

A small convolutional network with BatchNorm divides a scene of 48 x 48 pixels into 6 x 6 cells; the cell that holds
an object's centre predicts its box, that there is one, and its class. Losses: complete IoU for boxes, binary cross
entropy for objectness (whose target is the overlap reached) and for classes. The result is the mean average
precision at an overlap of 0.5. The baseline says at every cell the mean box of each class, as surely as training
objects of that class are common there.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import isoscale
from isoscale.recipes.data import shapes
from isoscale.recipes.data.boxes import SCORE_BINS, average_precision, ciou, count_matches, suppress

_STRIDE = 8
_GRID = shapes.SIZE // _STRIDE
_CLASSES = len(shapes.CLASSES)
#: weights of the losses of box, objectness and class
_WEIGHTS = (2.0, 1.0, 0.5)


class Detector(nn.Module):
    """Scenes in; a row of 4 box numbers, 1 objectness and the classes' logits for each cell out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _block(1, width, 1),
            _block(width, 2 * width, 2),
            _block(2 * width, 2 * width, 1),
            _block(2 * width, 4 * width, 2),
            _block(4 * width, 4 * width, 1),
            _block(4 * width, 8 * width, 2),
            _block(8 * width, 4 * width, 1),
            nn.Conv2d(4 * width, 5 + _CLASSES, 1),
        )
        rows, columns = torch.meshgrid(torch.arange(_GRID), torch.arange(_GRID), indexing="ij")
        self.register_buffer("corners", torch.stack([columns, rows], -1).view(-1, 2).float(), persistent=False)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Boxes in pixels (scenes, cells, 4), objectness (scenes, cells) and classes (scenes, cells, C) as logits."""
        raw = self.body(images).flatten(2).transpose(1, 2)
        # A centre may lie a little outside its cell, else edges could only be reached at infinity.
        centres = (self.corners + raw[..., :2].sigmoid() * 2 - 0.5) * _STRIDE
        extents = raw[..., 2:4].clamp(-3, 2).exp() * 2 * _STRIDE
        return torch.cat([centres, extents], -1), raw[..., 4], raw[..., 5:]


def _block(channels_in: int, channels_out: int, stride: int) -> nn.Module:
    convolution = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out), nn.SiLU())


def assign(classes: torch.Tensor, boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The scene, cell and place among the truths of every object that a cell is responsible for.

    It is the cell that holds the object's centre; of several objects in one cell the smallest has it.
    """
    cells = (boxes[..., :2] / _STRIDE).long().clamp(0, _GRID - 1)
    cell_of = cells[..., 1] * _GRID + cells[..., 0]
    area = boxes[..., 2:].prod(-1)
    there = classes != shapes.NO_OBJECT
    same = (cell_of[:, :, None] == cell_of[:, None, :]) & there[:, :, None] & there[:, None, :]
    place = torch.arange(classes.shape[1])
    equal = area[:, :, None] == area[:, None, :]
    smaller = (area[:, None, :] < area[:, :, None]) | (equal & (place[None, None, :] < place[None, :, None]))
    scene, which = (there & ~(same & smaller).any(-1)).nonzero(as_tuple=True)
    return scene, cell_of[scene, which], which


def detection_loss(
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor], classes: torch.Tensor, boxes: torch.Tensor
) -> torch.Tensor:
    found_boxes, objectness, logits = found
    scene, cell, which = assign(classes, boxes)
    overlap = ciou(found_boxes[scene, cell], boxes[scene, which])
    target = torch.zeros_like(objectness)
    target[scene, cell] = overlap.detach().clamp(min=0)
    named = F.one_hot(classes[scene, which], _CLASSES).to(logits.dtype)
    losses = (
        (1 - overlap).mean(),
        F.binary_cross_entropy_with_logits(objectness, target, reduction="sum") / len(scene),
        F.binary_cross_entropy_with_logits(logits[scene, cell], named),
    )
    return torch.stack([weight * loss for weight, loss in zip(_WEIGHTS, losses, strict=True)]).sum()


def detect(
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor], scene: int, least: float = 0.02
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Boxes, scores and classes that a scene is said to hold: the best class of each cell, doubles suppressed."""
    boxes, objectness, logits = (part[scene] for part in found)
    sureness, classes = logits.sigmoid().max(-1)
    scores = sureness * objectness.sigmoid()
    sure = scores >= least
    boxes, scores, classes = boxes[sure], scores[sure], classes[sure]
    kept = suppress(boxes, scores, classes)
    return boxes[kept], scores[kept], classes[kept]


def trivial_detections(classes: torch.Tensor, boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the baseline says of every scene, learned from training scenes: where objects tend to be."""
    scene, cell, which = assign(classes, boxes)
    kind = classes[scene, which]
    counts = torch.bincount(cell * _CLASSES + kind, minlength=_GRID * _GRID * _CLASSES).double()
    mean = torch.stack([boxes[scene, which][kind == c, 2:].mean(0) for c in range(_CLASSES)])
    cells = torch.arange(_GRID * _GRID)
    centres = (torch.stack([cells % _GRID, cells // _GRID], -1) + 0.5) * _STRIDE
    everywhere = torch.cat([centres[:, None].expand(-1, _CLASSES, -1), mean[None].expand(len(cells), -1, -1)], -1)
    return everywhere.flatten(0, 1), counts / counts.max(), torch.arange(_CLASSES).repeat(len(cells))


def matches(
    said: tuple[torch.Tensor, torch.Tensor, torch.Tensor], classes: torch.Tensor, boxes: torch.Tensor
) -> torch.Tensor:
    there = classes != shapes.NO_OBJECT
    return count_matches(*said, boxes[there], classes[there], _CLASSES)


def train(job: isoscale.Job) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2400, help="scenes to train on")
    parser.add_argument("--width", type=int, default=12, help="channels of the first layer")
    options = parser.parse_args()

    training = shapes.scenes(options.samples, seed=1)
    held_out = shapes.scenes(max(options.samples // 10, 32), seed=2)
    trivial = trivial_detections(*training.tensors[1:])
    pairs = list(zip(*held_out.tensors[1:], strict=True))
    num_truths = torch.bincount(held_out.tensors[1].flatten() + 1, minlength=_CLASSES + 1)[1:]
    counts = torch.stack([matches(trivial, classes, boxes) for classes, boxes in pairs]).sum(0)
    baseline = average_precision(counts, num_truths).mean().item()

    model = job.model(Detector(options.width))
    optimizer = job.keep("optimizer", torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3))
    loader = job.loader(training, batch_size=8, shuffle=True, drop_last=True)
    validation = job.loader(held_out, batch_size=20, train=False)
    steps = options.epochs * len(loader)
    schedule = job.keep("schedule", torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1))

    for _ in job.epochs(options.epochs):
        for step in loader:
            for images, classes, boxes in step:
                loss = detection_loss(model(images), classes, boxes)
                loss.backward()  # type: ignore[no-untyped-call]
                step.log(loss=loss)
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        model.eval()
        for step in validation:
            for images, classes, boxes in step:
                with torch.no_grad():
                    found = model(images)
                counts = torch.zeros(2, _CLASSES, SCORE_BINS, dtype=torch.int64)
                for i in range(len(images)):
                    counts += matches(detect(found, i), classes[i], boxes[i])
                step.sum(counts=counts)
        model.train()
        precision = average_precision(torch.as_tensor(validation.totals["counts"]), num_truths)
        job.log(map50=precision.mean().item(), baseline=baseline)


if __name__ == "__main__":
    isoscale.run(train)
