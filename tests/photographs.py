"""Folders of real image files, and MNIST's files, made small."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from PIL import Image

from dynbench.workloads.datasets.images import generated_digits, generated_stripes

CLASSES = ("ant", "bee", "cat")


def write_folder(root: Path, train: int = 8, val: int = 2, size: tuple[int, int] = (40, 30)) -> Path:
    """A JPEG folder with so many images per class, each a colour of its class with noise."""
    rng = np.random.default_rng(0)
    for split, number in (("train", train), ("val", val)):
        for label, name in enumerate(CLASSES):
            folder = root / split / name
            for index in range(number):
                folder.mkdir(parents=True, exist_ok=True)
                pixels = rng.integers(0, 90, size=(size[1], size[0], 3))
                pixels[..., label] += 150
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index:02}.jpg", quality=90)
    return root


def cut_short(path: Path) -> Path:
    """Break an image: its second half is missing."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def write_mnist(folder: Path, train: int = 300, test: int = 60, *, packed: bool = False) -> Path:
    """The four files of MNIST with generated digits."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = generated_digits()
    for begin, split, number in (("train", splits.train, train), ("t10k", splits.eval, test)):
        pixels = np.stack([np.asarray(split.images(index)) for index in range(number)])
        labels = split.labels[:number].astype(np.uint8)
        for name, array in ((f"{begin}-images-idx3-ubyte", pixels), (f"{begin}-labels-idx1-ubyte", labels)):
            header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">i4").tobytes()
            content = header + array.tobytes()
            file = folder / (f"{name}.gz" if packed else name)
            file.write_bytes(gzip.compress(content) if packed else content)
    return folder


def stripes(side: int = 16) -> Image.Image:
    """One generated image."""
    return generated_stripes(side).train.images(3)
