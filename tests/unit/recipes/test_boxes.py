"""Boxes of a detector, each function against a plain and slow one."""

from __future__ import annotations

import math

import pytest
import torch

from isoscale.recipes.data.boxes import SCORE_BINS, average_precision, ciou, count_matches, iou, suppress


def _random_boxes(count: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.cat([torch.randint(6, 26, (count, 2), generator=random), _even(count, random)], 1).float()


def _even(count: int, random: torch.Generator) -> torch.Tensor:
    return 2 * torch.randint(1, 6, (count, 2), generator=random)


def _pixels(box: torch.Tensor) -> set[tuple[int, int]]:
    x, y, width, height = (int(n) for n in box)
    return {(i, j) for i in range(x - width // 2, x + width // 2) for j in range(y - height // 2, y + height // 2)}


def test_iou_is_counted_pixels() -> None:
    a, b = _random_boxes(40, 1), _random_boxes(30, 2)
    found = iou(a[:, None], b[None])
    assert found.shape == (40, 30)
    assert (found > 0).any()
    for i in range(40):
        for j in range(30):
            ours, theirs = _pixels(a[i]), _pixels(b[j])
            assert found[i, j].item() == pytest.approx(len(ours & theirs) / len(ours | theirs), abs=1e-6)


def test_ciou_is_one_for_the_truth_and_less_for_anything_else() -> None:
    truth = torch.tensor([10.0, 10.0, 4.0, 8.0])
    assert ciou(truth, truth).item() == pytest.approx(1, abs=1e-5)
    far, farther = torch.tensor([20.0, 10, 4, 8]), torch.tensor([30.0, 10, 4, 8])
    assert 0 > ciou(far, truth) > ciou(farther, truth) > -1


def test_ciou_by_hand() -> None:
    # Concentric, 4 x 4 in 8 x 4: IoU 1/2, no distance, v from atan(1) and atan(2).
    v = 4 / math.pi**2 * (math.atan(2) - math.atan(1)) ** 2
    expected = 0.5 - v / (0.5 + v) * v
    found = ciou(torch.tensor([9.0, 9, 4, 4]), torch.tensor([9.0, 9, 8, 4]))
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_ciou_gives_boxes_apart_a_gradient_towards_each_other() -> None:
    box = torch.tensor([10.0, 10, 4, 4], requires_grad=True)
    ciou(box, torch.tensor([30.0, 10, 4, 4])).backward()
    assert box.grad is not None
    assert box.grad[0] > 0
    assert box.grad[1] == 0


def test_suppression_keeps_the_best_of_a_class() -> None:
    boxes = torch.tensor([[10.0, 10, 8, 8], [11, 10, 8, 8], [11, 10, 8, 8], [30, 30, 8, 8]])
    kept = suppress(boxes, torch.tensor([0.5, 0.9, 0.3, 0.1]), torch.tensor([0, 0, 1, 0]))
    assert kept.tolist() == [1, 2, 3]  # 0 overlaps 1; 2 is of another class; 3 lies elsewhere


def test_a_truth_is_matched_once_by_the_best_detection() -> None:
    truth = torch.tensor([[10.0, 10, 8, 8], [30, 30, 8, 8]])
    boxes = torch.tensor([[10.0, 10, 8, 8], [10, 11, 8, 8], [30, 30, 8, 8], [40, 10, 8, 8]])
    counts = count_matches(
        boxes, torch.tensor([0.4, 0.8, 0.6, 1.0]), torch.tensor([0, 0, 1, 1]), truth, torch.tensor([0, 1]), 2
    )
    assert counts[0].nonzero().tolist() == [[0, 800], [1, 600]]
    assert counts[1].nonzero().tolist() == [[0, 400], [1, SCORE_BINS - 1]]


def _slow_average_precision(detections: list[tuple[int, bool]], num_truths: int) -> float:
    """Precision at each recall that is reached, made monotone, summed over steps of recall; equal scores together."""
    points, right, seen = [(0.0, 0.0)], 0, 0
    for score in sorted({score for score, _ in detections}, reverse=True):
        group = [hit for s, hit in detections if s == score]
        right, seen = right + sum(group), seen + len(group)
        points.append((right / num_truths, right / seen))
    return sum(
        (points[i][0] - points[i - 1][0]) * max(precision for _, precision in points[i:]) for i in range(1, len(points))
    )


@pytest.mark.parametrize("seed", range(20))
def test_average_precision_against_sorting(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 60, (1,), generator=random))
    score = torch.randint(0, SCORE_BINS, (count,), generator=random)
    hit = torch.rand(count, generator=random) < 0.4
    counts = torch.zeros(2, 1, SCORE_BINS, dtype=torch.int64)
    for s, h in zip(score.tolist(), hit.tolist(), strict=True):
        counts[0 if h else 1, 0, s] += 1
    truths = int(hit.sum()) + 3
    expected = _slow_average_precision(list(zip(score.tolist(), hit.tolist(), strict=True)), truths)
    assert average_precision(counts, torch.tensor([truths])).item() == pytest.approx(expected)


def test_average_precision_by_hand() -> None:
    # Right at 900, wrong at 800, right at 700, of 4 objects: 1/4 * 1 + 1/4 * 2/3. No detection at all: 0.
    counts = torch.zeros(2, 2, SCORE_BINS, dtype=torch.int64)
    counts[0, 0, [900, 700]] = 1
    counts[1, 0, 800] = 1
    assert average_precision(counts, torch.tensor([4, 4])).tolist() == pytest.approx([1 / 4 + 1 / 6, 0])
