"""Images of a folder: `train/CLASS/*.jpg`, and `val/CLASS/*.jpg` where there are some to evaluate on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from dynbench.config.schema import Workload
from dynbench.errors import DataError, did_you_mean
from dynbench.plugins import options_of
from dynbench.plugins.datasets import DataOptions
from dynbench.workloads.datasets.base import ImageSplit, Splits
from dynbench.workloads.decoding import eight_bits
from dynbench.workloads.hub import first_line

TRAIN, EVAL = "train", "val"
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""Of file names, in lower case; files of other names are no images."""
EXPECTED = f"expected {TRAIN}/CLASS/*.jpg, and {EVAL}/CLASS/*.jpg where there are images to evaluate on"


@dataclass(frozen=True)
class Files:
    """Reads image `i` as red, green and blue.

    Args:
        paths: of the images.
    """

    paths: Sequence[str]

    def __call__(self, index: int) -> Image.Image:
        """The image, decoded.

        Raises:
            DataError: it cannot be read.
        """
        path = self.paths[index]
        try:
            with Image.open(path) as image:
                return eight_bits(image)
        except MemoryError:
            raise
        except Exception as error:  # decoders of damaged files fail in ways of their own
            raise DataError(
                f"{path}: the image cannot be read: {first_line(error)}",
                "It could be when the run began. Bring it back, or leave it out and start again.",
            ) from error


def load(settings: Workload) -> Splits:
    """The images below `workload.data_path`; the folders in `train/` are the classes, in the order of their names.

    Raises:
        DataError: no such folders, none with an image, or evaluation images of a class that training never shows.
    """
    root = Path(str(options_of(settings, DataOptions).data_path)).expanduser()
    train = root / TRAIN
    if not train.is_dir():
        found = sorted(path.name for path in root.iterdir())
        near = did_you_mean(TRAIN, found)
        raise DataError(f"{root}: there is no folder {TRAIN!r} in it; {EXPECTED}. {near}".rstrip())
    classes = tuple(sorted(entry.name for entry in os.scandir(train) if entry.is_dir()))
    held = root / EVAL
    evaluation = None
    if held.is_dir():
        unknown = sorted({entry.name for entry in os.scandir(held) if entry.is_dir()} - set(classes))
        if unknown:
            near = did_you_mean(unknown[0], classes)
            raise DataError(
                f"{held / unknown[0]}: {train} has no class {unknown[0]!r}. {near}".rstrip(),
                "What training never shows cannot be told apart: leave the folder out, or put images of it there.",
            )
        evaluation = _split(held, classes)
    return Splits(_split(train, classes), evaluation)


def _split(folder: Path, classes: tuple[str, ...]) -> ImageSplit:
    files: list[str] = []
    labels: list[int] = []
    digest = hashlib.blake2b(digest_size=16)
    for label, name in enumerate(classes):
        for path, size in _images_in(folder / name):
            files.append(path)
            labels.append(label)
            digest.update(f"{name}/{Path(path).name} {size}\n".encode("utf-8", "surrogateescape"))
    if not files:
        raise DataError(f"{folder}: no image in a folder of a class; {EXPECTED}")
    kept = tuple(files)
    return ImageSplit(Files(kept), np.array(labels, np.int64), str(folder), digest.hexdigest(), classes, kept)


def _images_in(folder: Path) -> Iterator[tuple[str, int]]:
    """Path and size of the images in one folder, by name; a class may have none."""
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if entry.name.lower().endswith(ENDINGS) and entry.is_file()]
        yield from sorted((entry.path, entry.stat().st_size) for entry in found)
