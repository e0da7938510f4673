"""Scenes for a detector: ellipses, rectangles and triangles of any size and grey on a noisy ground, from a seed.

Drawn with integers only, so a seed gives the same pixels on every machine. Boxes are (x, y, width, height) with x, y
the centre, in pixels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import TensorDataset

__all__ = ["CLASSES", "MAX_OBJECTS", "NO_OBJECT", "SIZE", "scenes"]

CLASSES = ("ellipse", "rectangle", "triangle")
#: pixels along an edge of a scene
SIZE = 48
MAX_OBJECTS = 3
#: class of a row of `boxes` that holds no object
NO_OBJECT = -1
_TRIES = 8

_ROWS, _COLUMNS = np.mgrid[0:SIZE, 0:SIZE]


def scenes(count: int, seed: int) -> TensorDataset:
    """`count` samples of image (1, SIZE, SIZE), classes (MAX_OBJECTS,) and boxes (MAX_OBJECTS, 4).

    Scene i is a function of the seed and i. It holds at least one object; objects lie wholly inside, and their boxes
    do not overlap.
    """
    images = np.empty((count, 1, SIZE, SIZE), dtype=np.float32)
    classes = np.full((count, MAX_OBJECTS), NO_OBJECT, dtype=np.int64)
    boxes = np.zeros((count, MAX_OBJECTS, 4), dtype=np.float32)
    for i in range(count):
        random = np.random.Generator(np.random.PCG64([seed, i]))
        pixels = random.integers(80, 121, (SIZE, SIZE))
        for j, (kind, corners) in enumerate(_objects(random)):
            left, top, right, bottom = corners
            # At least 40 away from the ground, lighter or darker.
            grey = 100 + int(random.choice((-1, 1))) * int(random.integers(60, 101))
            pixels[_inside(kind, corners)] = grey
            classes[i, j] = kind
            boxes[i, j] = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
        images[i, 0] = (pixels - 100) / 100
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(classes), torch.from_numpy(boxes))


def _objects(random: np.random.Generator) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """Class and (left, top, right, bottom) of each object; right and bottom are the first pixels outside."""
    placed: list[tuple[int, int, int, int]] = []
    for _ in range(int(random.integers(1, MAX_OBJECTS + 1))):
        kind = int(random.integers(len(CLASSES)))
        for _ in range(_TRIES):
            width, height = (int(n) for n in random.integers(9, 23, 2))
            left, top = int(random.integers(0, SIZE - width + 1)), int(random.integers(0, SIZE - height + 1))
            corners = left, top, left + width, top + height
            if all(not _overlap(corners, other) for other in placed):
                placed.append(corners)
                yield kind, corners
                break


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _inside(kind: int, corners: tuple[int, int, int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Which pixels the shape covers. Twice the distance from the centre, so that halves stay whole numbers."""
    left, top, right, bottom = corners
    width, height = right - left, bottom - top
    across, down = 2 * _COLUMNS + 1 - left - right, 2 * _ROWS + 1 - top - bottom
    inside: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = (abs(across) < width) & (abs(down) < height)
    if CLASSES[kind] == "ellipse":
        inside &= (across * height) ** 2 + (down * width) ** 2 < (width * height) ** 2
    elif CLASSES[kind] == "triangle":  # its tip in the middle of the upper edge, one or two pixels wide
        inside &= (abs(across) - 1) * 2 * height < width * (down + height)
    return inside
