"""Generated digits, 28 by 28 grey pixels as MNIST's: printed, moved by up to 2 pixels, of uneven ink, with noise.

The data are the same in every run: their generator has its own fixed seed, `train.seed` does not change them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dynbench.workloads.datasets.base import ImageSplit, Splits

SIDE, CLASSES = 28, 10
TRAIN_SAMPLES, EVAL_SAMPLES = 8192, 1024
GENERATOR_SEED = 20_001
FIGURES = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)
"""Row by row, as a printer of 5 by 7 dots has them."""
DOT = 3
"""Pixels of a dot's side."""
MOVED = 2
NOISE = 40.0
"""Standard deviation, of 255."""


@dataclass(frozen=True)
class Pixels:
    """Image `i` of an array.

    Args:
        values: grey, uint8 [N, height, width].
    """

    values: NDArray[np.uint8]

    def __call__(self, index: int) -> Image.Image:
        """The image."""
        return Image.fromarray(self.values[index])


def generated() -> Splits:
    """8,192 digits to train on, and 1,024 to evaluate on."""
    return Splits(_split("train", TRAIN_SAMPLES, 0), _split("eval", EVAL_SAMPLES, 1))


def _split(split: str, n_samples: int, stream: int) -> ImageSplit:
    rng = np.random.default_rng([GENERATOR_SEED, stream])
    dots = np.array([[[int(dot) for dot in row] for row in figure.split()] for figure in FIGURES])
    figures = dots.repeat(DOT, axis=1).repeat(DOT, axis=2)
    height, width = figures.shape[1:]
    labels = rng.integers(CLASSES, size=n_samples)
    top = (SIDE - height) // 2 + rng.integers(-MOVED, MOVED + 1, size=n_samples)
    left = (SIDE - width) // 2 + rng.integers(-MOVED, MOVED + 1, size=n_samples)
    ink = rng.uniform(128, 255, size=(n_samples, 1, 1))
    values = rng.standard_normal((n_samples, SIDE, SIDE), dtype=np.float32) * NOISE
    rows = top[:, None, None] + np.arange(height)[:, None]
    columns = left[:, None, None] + np.arange(width)
    values[np.arange(n_samples)[:, None, None], rows, columns] += figures[labels] * ink
    pixels = values.clip(0, 255).astype(np.uint8)
    digest = hashlib.blake2b(pixels.tobytes(), digest_size=16).hexdigest()
    return ImageSplit(Pixels(pixels), labels, f"generated digits, {split}, seed {GENERATOR_SEED}", digest)
