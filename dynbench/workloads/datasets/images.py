"""Data sets of images: generated digits and stripes, folders of files, MNIST; and how large a model sees them.

Generated data are the same in every run: their generators have fixed seeds of their own, `train.seed` does not change
them. Digits are 28 by 28 grey pixels as MNIST's: printed, moved by up to 2 pixels, of uneven ink, with noise. Images in
colour, of any size, are stripes whose direction is the class, of any width and hue, with noise; each depends on nothing
but its number and the size, so that none has to be kept in memory.

A folder holds `train/CLASS/*.jpg`, and `val/CLASS/*.jpg` where there are some to evaluate on. MNIST (LeCun, Cortes and
Burges) is four idx files in one folder, plain or gzipped.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dynbench.config.schema import Workload
from dynbench.errors import DataError, did_you_mean, first_line
from dynbench.plugins import DATASETS, options_of
from dynbench.plugins.datasets import DataOptions
from dynbench.plugins.workloads import ImageOptions
from dynbench.workloads.data import IntArray, digest_of
from dynbench.workloads.datasets.base import ImageSplit, Splits

PHOTOGRAPHS, GENERATED = 224, 32
PREPROCESSOR = "preprocessor_config.json"
"""Within a model's folder: what transformers makes of images before the model sees them."""


def image_side(settings: Workload) -> tuple[int, str]:
    """Its side in pixels, and why where `workload.image_size` leaves that open; else no reason.

    Raises:
        DataError: a pretrained model says something else than a size.
    """
    side = options_of(settings, ImageOptions).image_size
    if side != "auto":
        return side, ""
    file = _preprocessor_file(settings)
    if file is not None:
        return _stored_side(file), f"what {file} says"
    if DATASETS[settings.dataset].generated:
        return GENERATED, "generated images"
    reason = "what ResNets are trained with on photographs"
    if settings.weights == "pretrained":
        reason += f"; {settings.model} has no {PREPROCESSOR} here that says more"
    return PHOTOGRAPHS, reason


def _preprocessor_file(settings: Workload) -> Path | None:
    """A pretrained model's `PREPROCESSOR`: in its folder, or in the hub's cache; None where there is none."""
    if settings.weights != "pretrained":
        return None
    folder = Path(settings.model).expanduser()
    if folder.exists():
        return folder / PREPROCESSOR if (folder / PREPROCESSOR).is_file() else None
    from huggingface_hub import try_to_load_from_cache  # takes a third of a second, and few runs ask
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):  # which loading the model reports
        found = try_to_load_from_cache(settings.model, PREPROCESSOR)
        return Path(found) if isinstance(found, str) else None
    return None


def _stored_side(file: Path) -> int:
    """Pixels of the square that is cut out in the end, else of the size."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        size = stored.get("crop_size") or stored["size"]
        (side,) = {int(side) for side in (size.values() if isinstance(size, dict) else [size])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file}: the side of a square cannot be read in it: {error}", "Say it: --image-size 224."
        ) from error
    return side


SIXTEEN_BITS = ("PNG", "PPM")
"""Formats whose whole numbers are of 16 bits, whatever Pillow holds them in."""
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


def _image(values: NDArray[np.uint8], index: int) -> Image.Image:
    """Image `index` of an array of grey ones, [N, height, width]."""
    return Image.fromarray(values[index])


@cache
def generated_digits() -> Splits:
    """8,192 digits to train on, and 1,024 to evaluate on."""
    return Splits(_digits("train", TRAIN_SAMPLES, 0), _digits("eval", EVAL_SAMPLES, 1))


def _digits(split: str, n_samples: int, stream: int) -> ImageSplit:
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
    source = f"generated digits, {split}, seed {GENERATOR_SEED}"
    return ImageSplit(partial(_image, pixels), labels, source, digest_of(pixels))


STRIPES_CLASSES = 10
STRIPES_TRAIN, STRIPES_EVAL = 4096, 512
STRIPES_SEED = 20_002
STRIPES_NOISE = 0.15
"""Standard deviation, of the range from black to white."""


def _stripes(labels: IntArray, side: int, stream: int, index: int) -> Image.Image:
    """Image `index`, the same at every call, of so many pixels a side; its class is that of `labels`, shape [N]."""
    rng = np.random.default_rng([STRIPES_SEED, stream, index])
    angle, waves = np.pi * labels[index] / STRIPES_CLASSES, rng.uniform(2, 5)
    along = np.arange(side) / side
    across = along * np.cos(angle) + along[:, None] * np.sin(angle)
    stripes = np.sin(2 * np.pi * (waves * across + rng.random()))[..., None]
    low, high = rng.uniform(0, 0.4, size=3), rng.uniform(0.6, 1, size=3)
    values = low + (high - low) * (stripes + 1) / 2 + rng.normal(0, STRIPES_NOISE, size=(side, side, 3))
    pixels: NDArray[np.uint8] = (values.clip(0, 1) * 255).astype(np.uint8)
    return Image.fromarray(pixels)


def generated_stripes(side: int) -> Splits:
    """4,096 images of so many pixels a side to train on, and 512 to evaluate on."""
    return Splits(_pictures("train", STRIPES_TRAIN, 0, side), _pictures("eval", STRIPES_EVAL, 1, side))


def _pictures(split: str, n_samples: int, stream: int, side: int) -> ImageSplit:
    labels = np.random.default_rng([STRIPES_SEED, stream]).integers(STRIPES_CLASSES, size=n_samples)
    source = f"generated images of {side} pixels, {split}, seed {STRIPES_SEED}"
    return ImageSplit(partial(_stripes, labels, side, stream), labels, source, source)


def eight_bits(image: Image.Image) -> Image.Image:
    """An image in red, green and blue, of 8 bits each: of 16 bits the upper ones.

    Raises:
        ValueError: whole or real numbers of no known range.
    """
    wide = image.mode.startswith("I;16") or (image.mode == "I" and image.format in SIXTEEN_BITS)
    if wide:
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"its pixels are numbers of no known range (mode {image.mode}); save it with 8 or 16 bits")
    return image.convert("RGB")


TRAIN, EVAL = "train", "val"
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""Of file names, in lower case; files of other names are no images."""
EXPECTED = f"expected {TRAIN}/CLASS/*.jpg, and {EVAL}/CLASS/*.jpg where there are images to evaluate on"


def read_image(paths: Sequence[str], index: int) -> Image.Image:
    """The image in file `index`, decoded, as red, green and blue.

    Raises:
        DataError: it cannot be read.
    """
    path = paths[index]
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


def load_image_folder(settings: Workload) -> Splits:
    """The images below `workload.data_path`; the folders in `train/` are the classes, in the order of their names.

    Raises:
        DataError: no such folders, none with an image, or evaluation images of a class that training never shows.
    """
    root = Path(str(options_of(settings, DataOptions).data_path)).expanduser()
    train = root / TRAIN
    if not train.is_dir():
        near = did_you_mean(TRAIN, sorted(path.name for path in root.iterdir()))
        raise DataError(f"{root}: there is no folder {TRAIN!r} in it; {EXPECTED}. {near}".rstrip())
    classes = tuple(sorted(entry.name for entry in os.scandir(train) if entry.is_dir()))
    held_out = root / EVAL
    evaluation = None
    if held_out.is_dir():
        unknown = sorted({entry.name for entry in os.scandir(held_out) if entry.is_dir()} - set(classes))
        if unknown:
            near = did_you_mean(unknown[0], classes)
            raise DataError(
                f"{held_out / unknown[0]}: {train} has no class {unknown[0]!r}. {near}".rstrip(),
                "What training never shows cannot be told apart: leave the folder out, or put images of it there.",
            )
        evaluation = _folder_split(held_out, classes)
    return Splits(_folder_split(train, classes), evaluation)


def _folder_split(folder: Path, classes: tuple[str, ...]) -> ImageSplit:
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
    paths = tuple(files)
    return ImageSplit(
        partial(read_image, paths), np.array(labels, np.int64), str(folder), digest.hexdigest(), classes, paths
    )


def _images_in(folder: Path) -> Iterator[tuple[str, int]]:
    """Path and size of the images in one folder, by name; a class may have none."""
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if entry.name.lower().endswith(ENDINGS) and entry.is_file()]
        yield from sorted((entry.path, entry.stat().st_size) for entry in found)


IDX = ("images-idx3", "labels-idx1")
UNSIGNED_BYTE = 0x08
"""Type code of idx."""


def load_mnist(settings: Workload) -> Splits:
    """`train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the same of `t10k`, each perhaps with `.gz`.

    The files of `t10k` may be missing: digits to evaluate on are held out then.

    Raises:
        DataError: a file that is missing or is none of these.
    """
    folder = Path(str(options_of(settings, DataOptions).data_path)).expanduser()
    has_eval = any(_idx_file(folder, f"t10k-{what}-ubyte") for what in IDX)
    return Splits(_mnist(folder, "train"), _mnist(folder, "t10k") if has_eval else None)


def _mnist(folder: Path, begin: str) -> ImageSplit:
    images, labels = (_idx_file(folder, f"{begin}-{what}-ubyte") for what in IDX)
    for path, what in zip((images, labels), IDX, strict=True):
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
    return ImageSplit(partial(_image, pixels), classes.astype(np.int64), str(images), digest_of(pixels, classes))


def _idx_file(folder: Path, name: str) -> Path | None:
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
