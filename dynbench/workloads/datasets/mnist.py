"""Handwritten digits of the four idx files of MNIST (LeCun, Cortes and Burges), plain or gzipped, in one folder."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.plugins import options_of
from dynbench.plugins.datasets import DataOptions
from dynbench.workloads.datasets.base import ImageSplit, Splits
from dynbench.workloads.datasets.digits import CLASSES, SIDE, Pixels

NAMES = {"train": "train", "eval": "t10k"}
"""How the names of the files begin."""
UNSIGNED_BYTE = 0x08
"""Type code of idx."""


def load(settings: Workload) -> Splits:
    """`train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the same of `t10k`, each perhaps with `.gz`.

    The files of `t10k` may be missing: digits to evaluate on are held out then.

    Raises:
        DataError: a file that is missing or is none of these.
    """
    folder = Path(str(options_of(settings, DataOptions).data_path)).expanduser()
    train = _split(folder, NAMES["train"])
    assert train is not None
    return Splits(train, _split(folder, NAMES["eval"], optional=True))


def _split(folder: Path, begin: str, *, optional: bool = False) -> ImageSplit | None:
    images, labels = (_find(folder, f"{begin}-{what}-ubyte") for what in ("images-idx3", "labels-idx1"))
    if optional and images is None and labels is None:
        return None
    for path, what in ((images, "images-idx3"), (labels, "labels-idx1")):
        if path is None:
            found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:6]) or "nothing"
            raise DataError(
                f"{folder}: there is no {begin}-{what}-ubyte, nor one with .gz; it holds {found}",
                "Name the folder of MNIST's idx files (--data-path FOLDER), or use --dataset embedded.",
            )
    assert images is not None and labels is not None
    pixels, classes = read_idx(images, 3), read_idx(labels, 1)
    if pixels.shape[1:] != (SIDE, SIDE) or len(pixels) == 0:
        raise DataError(f"{images}: {len(pixels)} images of {pixels.shape[1:]} pixels; expected {SIDE} by {SIDE}")
    if len(pixels) != len(classes):
        raise DataError(f"{labels}: {len(classes)} labels for the {len(pixels)} images of {images}")
    if int(classes.max()) >= CLASSES:
        raise DataError(f"{labels}: label {classes.max()}; expected 0 to {CLASSES - 1}")
    digest = hashlib.blake2b(pixels.tobytes(), digest_size=16)
    digest.update(classes.tobytes())
    return ImageSplit(Pixels(pixels), classes.astype(np.int64), str(images), digest.hexdigest())


def _find(folder: Path, name: str) -> Path | None:
    names = (name, f"{name}.gz", name.replace("-idx", ".idx"), f"{name.replace('-idx', '.idx')}.gz")
    return next((folder / each for each in names if (folder / each).is_file()), None)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes: two zeros, the type, the number of dimensions, their sizes, then the bytes.

    Raises:
        DataError: it is something else, or cut short.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, UNSIGNED_BYTE, dimensions)) or len(content) < header:
        raise DataError(f"{path}: no idx file of {dimensions} dimensions of unsigned bytes")
    shape = tuple(np.frombuffer(content, ">i4", dimensions, 4).tolist())
    values = np.frombuffer(content, np.uint8, offset=header)
    if len(values) != int(np.prod(shape)):
        raise DataError(f"{path}: {len(values):,} values, its header says {int(np.prod(shape)):,}: fetch it again")
    return values.reshape(shape)
