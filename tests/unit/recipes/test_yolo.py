"""The detector's scenes, assignment and losses."""

from __future__ import annotations

import pytest
import torch

from isoscale.recipes import yolo
from isoscale.recipes.data import shapes
from isoscale.recipes.data.boxes import average_precision


def test_scenes_are_a_function_of_seed_and_place() -> None:
    few, many, other = shapes.scenes(5, 7), shapes.scenes(9, 7), shapes.scenes(5, 8)
    for a, b in zip(few.tensors, many.tensors, strict=True):
        assert torch.equal(a, b[:5])
    assert not torch.equal(few.tensors[0], other.tensors[0])


def test_every_object_fills_its_box_and_lies_inside_alone() -> None:
    images, classes, boxes = shapes.scenes(60, 3).tensors
    assert set(classes.unique().tolist()) == {shapes.NO_OBJECT, 0, 1, 2}
    assert (classes[:, 0] != shapes.NO_OBJECT).all()
    for scene in range(60):
        painted = images[scene, 0].abs() > 0.3
        covered = torch.zeros_like(painted)
        for kind, (x, y, width, height) in zip(classes[scene].tolist(), boxes[scene].tolist(), strict=True):
            if kind == shapes.NO_OBJECT:
                continue
            left, top = int(x - width / 2), int(y - height / 2)
            window = (slice(top, top + int(height)), slice(left, left + int(width)))
            assert min(left, top) >= 0
            assert painted[window].shape == (int(height), int(width))
            assert not covered[window].any()
            covered[window] = True
            share = painted[window].float().mean().item()
            low, high = {0: (0.7, 0.85), 1: (1.0, 1.0), 2: (0.45, 0.65)}[kind]
            assert low <= share <= high, shapes.CLASSES[kind]
            # It touches all four edges: the box is no larger than the object.
            assert painted[window][[0, -1]].any(1).all()
            assert painted[window][:, [0, -1]].any(0).all()
        assert not (painted & ~covered).any()


def test_the_cell_of_the_centre_is_responsible_and_the_smallest_object_wins_it() -> None:
    none = shapes.NO_OBJECT
    classes = torch.tensor([[0, 1, 2], [2, none, none], [1, 1, none]])
    boxes = torch.tensor(
        [
            [[4.0, 4, 10, 10], [5, 5, 9, 9], [44, 20, 12, 12]],
            [[47.9, 47.9, 9, 9], [0, 0, 0, 0], [0, 0, 0, 0]],
            [[20.0, 12, 9, 9], [20, 12, 9, 9], [0, 0, 0, 0]],
        ]
    )
    scene, cell, which = yolo.assign(classes, boxes)
    found = list(zip(scene.tolist(), cell.tolist(), which.tolist(), strict=True))
    assert found == [(0, 0, 1), (0, 17, 2), (1, 35, 0), (2, 8, 0)]


def _perfect(classes: torch.Tensor, boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scene, cell, which = yolo.assign(classes, boxes)
    cells, sure = 36, 12.0
    found = torch.ones(len(classes), cells, 4)
    found[scene, cell] = boxes[scene, which]
    objectness = torch.full((len(classes), cells), -sure)
    objectness[scene, cell] = sure
    logits = torch.full((len(classes), cells, len(shapes.CLASSES)), -sure)
    logits[scene, cell, classes[scene, which]] = sure
    return found, objectness, logits


def test_the_truth_has_almost_no_loss_and_full_precision() -> None:
    _, classes, boxes = shapes.scenes(40, 5).tensors
    found = _perfect(classes, boxes)
    assert yolo.detection_loss(found, classes, boxes).item() == pytest.approx(0, abs=1e-3)
    counts = torch.stack([yolo.matches(yolo.detect(found, i), classes[i], boxes[i]) for i in range(40)]).sum(0)
    truths = torch.bincount(classes.flatten() + 1, minlength=4)[1:]
    # Where two centres share a cell one object cannot be said.
    assert average_precision(counts, truths).min() > 0.9
    shifted = (found[0] + torch.tensor([6.0, 0, 0, 0]), *found[1:])
    assert yolo.detection_loss(shifted, classes, boxes) > 0.5


def test_the_trivial_predictor_says_where_objects_tend_to_be() -> None:
    classes = torch.tensor([[0, 1, 2]])
    boxes = torch.tensor([[[4.0, 4, 10, 12], [20, 4, 14, 9], [44, 44, 9, 9]]])
    said, scores, kinds = yolo.trivial_detections(classes, boxes)
    assert len(said) == 36 * 3
    sure = scores == 1
    assert said[sure].tolist() == [[4, 4, 10, 12], [20, 4, 14, 9], [44, 44, 9, 9]]
    assert kinds[sure].tolist() == [0, 1, 2]
    assert scores.sum() == 3
