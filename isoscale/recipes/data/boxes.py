"""Boxes of a detector: overlap, suppression of doubles, matching with the truth, average precision.

Boxes are (x, y, width, height) with x, y the centre. Detections are counted into bins of score, as integers, so that
counts of logical workers may be added in any order and precision does not depend on who saw which scene.
"""

from __future__ import annotations

import math

import torch

__all__ = ["SCORE_BINS", "average_precision", "ciou", "count_matches", "iou", "suppress"]

#: detections whose scores fall into one bin rank equal
SCORE_BINS = 1000
_EPS = 1e-7


def iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Intersection over union of boxes in the last dimension; others broadcast."""
    return _overlap(a, b)[0]


def _overlap(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Intersection over union, and the squared diagonal of the smallest box around both."""
    low_a, high_a = a[..., :2] - a[..., 2:] / 2, a[..., :2] + a[..., 2:] / 2
    low_b, high_b = b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2
    both = (torch.minimum(high_a, high_b) - torch.maximum(low_a, low_b)).clamp(min=0).prod(-1)
    union = a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - both
    diagonal = (torch.maximum(high_a, high_b) - torch.minimum(low_a, low_b)).square().sum(-1)
    return both / (union + _EPS), diagonal


def ciou(predicted: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Complete IoU (Zheng et al., 2020): IoU - distance^2 / diagonal^2 - alpha v, at most 1.

    v = (4 / pi^2) (atan(w_t / h_t) - atan(w_p / h_p))^2 and alpha = v / (1 - IoU + v), taken as a constant.
    """
    overlap, diagonal = _overlap(predicted, truth)
    distance = (predicted[..., :2] - truth[..., :2]).square().sum(-1)
    shape_truth = torch.atan(truth[..., 2] / (truth[..., 3] + _EPS))
    shape = torch.atan(predicted[..., 2] / (predicted[..., 3] + _EPS))
    v = (4 / math.pi**2) * (shape_truth - shape).square()
    with torch.no_grad():
        alpha = v / (1 - overlap + v + _EPS)
    return overlap - distance / (diagonal + _EPS) - alpha * v


def suppress(boxes: torch.Tensor, scores: torch.Tensor, classes: torch.Tensor, threshold: float = 0.5) -> torch.Tensor:
    """Indices of the boxes that stay, best first: a box goes if a better one of its class overlaps it by more."""
    order = scores.argsort(descending=True, stable=True)
    boxes, classes = boxes[order], classes[order]
    rivals = ((iou(boxes[:, None], boxes[None]) > threshold) & (classes[:, None] == classes[None])).tolist()
    kept: list[int] = []
    for i, row in enumerate(rivals):
        if not any(row[j] for j in kept):
            kept.append(i)
    return order[kept]


def count_matches(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    classes: torch.Tensor,
    truth_boxes: torch.Tensor,
    truth_classes: torch.Tensor,
    num_classes: int,
    threshold: float = 0.5,
) -> torch.Tensor:
    """Detections of one scene as counts by (right or wrong, class, bin of score).

    Best first, each takes the free truth of its class that it overlaps most, if it does so by `threshold` at least;
    then it is right (index 0), else wrong (index 1).
    """
    counts = torch.zeros(2, num_classes, SCORE_BINS, dtype=torch.int64)
    overlap = iou(boxes[:, None], truth_boxes[None])
    overlap = torch.where(classes[:, None] == truth_classes[None], overlap, -1.0)
    bins = (scores * SCORE_BINS).long().clamp(0, SCORE_BINS - 1)
    taken: set[int] = set()
    for i in scores.argsort(descending=True, stable=True).tolist():
        row = overlap[i].tolist()
        free = [j for j in range(len(row)) if j not in taken and row[j] >= threshold]
        if free:
            taken.add(max(free, key=lambda j: row[j]))
        counts[0 if free else 1, classes[i], bins[i]] += 1
    return counts


def average_precision(counts: torch.Tensor, num_truths: torch.Tensor) -> torch.Tensor:
    """Area under precision over recall for each class, precision being the best at that recall or a higher one.

    `counts` as `count_matches` gives them, added over scenes; `num_truths` is the number of objects of each class.
    """
    right, wrong = (counts.flip(-1).cumsum(-1)[i].double() for i in (0, 1))
    recall = right / num_truths.clamp(min=1)[:, None]
    precision = right / (right + wrong).clamp(min=1)
    best = precision.flip(-1).cummax(-1).values.flip(-1)
    return (recall.diff(dim=-1, prepend=torch.zeros(len(recall), 1, dtype=recall.dtype)) * best).sum(-1)
