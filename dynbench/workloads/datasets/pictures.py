"""Generated images in colour, of any size: stripes whose direction is the class, of any width and hue, with noise.

An image depends on nothing but its number and the size, so that none has to be kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dynbench.workloads.data import IntArray
from dynbench.workloads.datasets.base import ImageSplit, Splits

CLASSES = 10
TRAIN_SAMPLES, EVAL_SAMPLES = 4096, 512
GENERATOR_SEED = 20_002
NOISE = 0.15
"""Standard deviation, of the range from black to white."""


@dataclass(frozen=True)
class Stripes:
    """Makes image `i`.

    Args:
        labels: class of each image, shape [N].
        side: pixels.
        stream: of the random numbers.
    """

    labels: IntArray
    side: int
    stream: int

    def __call__(self, index: int) -> Image.Image:
        """The image, the same whenever it is asked for."""
        rng = np.random.default_rng([GENERATOR_SEED, self.stream, index])
        angle, waves = np.pi * self.labels[index] / CLASSES, rng.uniform(2, 5)
        along = np.arange(self.side) / self.side
        across = along * np.cos(angle) + along[:, None] * np.sin(angle)
        stripes = np.sin(2 * np.pi * (waves * across + rng.random()))[..., None]
        low, high = rng.uniform(0, 0.4, size=3), rng.uniform(0.6, 1, size=3)
        values = low + (high - low) * (stripes + 1) / 2 + rng.normal(0, NOISE, size=(self.side, self.side, 3))
        pixels: NDArray[np.uint8] = (values.clip(0, 1) * 255).astype(np.uint8)
        return Image.fromarray(pixels)


def generated(side: int) -> Splits:
    """4,096 images of so many pixels a side to train on, and 512 to evaluate on."""
    return Splits(_split("train", TRAIN_SAMPLES, 0, side), _split("eval", EVAL_SAMPLES, 1, side))


def _split(split: str, n_samples: int, stream: int, side: int) -> ImageSplit:
    labels = np.random.default_rng([GENERATOR_SEED, stream]).integers(CLASSES, size=n_samples)
    source = f"generated images of {side} pixels, {split}, seed {GENERATOR_SEED}"
    return ImageSplit(Stripes(labels, side, stream), labels, source, source)
