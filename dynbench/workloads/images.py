"""Samples that are images: decoded ahead of their step, unreadable files found before training and left out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dynbench.config.schema import Workload
from dynbench.errors import DataError, first_line
from dynbench.plugins import options_of
from dynbench.plugins.workloads import ImageOptions
from dynbench.runs.provenance import usable_cores
from dynbench.workloads.cache import Progress, cache_folder, load_or_make
from dynbench.workloads.data import TokenisedData, digest_of
from dynbench.workloads.datasets.base import ImageSplit, Splits, load_dataset, reading
from dynbench.workloads.datasets.images import eight_bits, read_image
from dynbench.workloads.samples import Samples, prepare_samples

logger = logging.getLogger(__name__)

Pixels = NDArray[np.uint8]

RESIZED = 8 / 7
"""Shorter side before the centre is cut out, of the square's: 256 pixels for 224."""
NAMED = 5
"""Unreadable files that a message names."""
DRAFT = (64, 64)
"""Pixels to which a JPEG is reduced while it is decoded to its end, which takes a fraction of the time."""


def square(image: Image.Image, side: int) -> Pixels:
    """The centre of an image, [side, side, 3]: its shorter side resized, bilinear with smoothing, to 8/7 of the square.

    An image that is the square already stays as it is.
    """
    image = eight_bits(image)
    if image.size != (side, side):
        scale = max(side, round(side * RESIZED)) / min(image.size)
        width, height = (max(side, round(length * scale)) for length in image.size)
        left, top = (width - side) // 2, (height - side) // 2
        across, down = image.width / width, image.height / height
        cut = left * across, top * down, (left + side) * across, (top + side) * down
        # Only what is cut out is resized: a long, thin image would become a huge one.
        image = image.resize((side, side), Image.Resampling.BILINEAR, box=cut)
    return np.array(image)


class Decoder:
    """Decodes images by number; threads do so ahead, where there are some.

    Decoders of files leave Python to its other threads while they work.

    Args:
        decode: the array of an image; raises what is wrong with it.
        threads: how many work ahead, and share what is wanted at once; 0 for none.
    """

    def __init__(self, decode: Callable[[int], Pixels], threads: int) -> None:
        self._decode = decode
        self._pool = ThreadPoolExecutor(threads, "decoding") if threads else None
        self._expected: dict[int, Future[Pixels]] = {}

    def expect(self, numbers: Iterable[int]) -> None:
        """Begin with images that will be needed next; what was expected before and not needed is dropped."""
        if self._pool is None:
            return
        before, self._expected = self._expected, {}
        for number in numbers:
            self._expected[number] = self._taken(before, number)
        for future in before.values():
            future.cancel()

    def __call__(self, numbers: Iterable[int]) -> list[Pixels]:
        """The images in order; those that were not expected are decoded now."""
        if self._pool is None:
            return [self._decode(number) for number in numbers]
        futures = [self._taken(self._expected, number) for number in numbers]
        return [future.result() for future in futures]

    def _taken(self, begun: dict[int, Future[Pixels]], number: int) -> Future[Pixels]:
        """Taken out of those that were begun, or begun now."""
        assert self._pool is not None
        return begun.pop(number) if number in begun else self._pool.submit(self._decode, number)


@dataclass(frozen=True)
class ImageSamples:
    """The samples of a run, each one token long: the number of its image.

    Args:
        samples: their numbers and labels.
        image: an image by its number.
        classes: what the source calls them; empty where it counts them from 0.
        unreadable: paths of the files that were left out.
    """

    samples: Samples
    image: Callable[[int], Image.Image]
    classes: tuple[str, ...]
    unreadable: list[str]


def image_samples(settings: Workload, seed: int, classes: Sequence[str] = ()) -> ImageSamples:
    """The images of `workload.dataset`, without the files that cannot be read.

    Args:
        settings: the configuration's `workload` section.
        seed: `train.seed`, for the subset.
        classes: those of a trained model in order, see `load_dataset`.

    Raises:
        DataError: files that cannot be used.
    """
    splits = load_dataset(settings, classes)
    assert isinstance(splits.train, ImageSplit), "rules ask for images"
    assert splits.eval is None or isinstance(splits.eval, ImageSplit)
    train, unreadable = without_unreadable(splits.train, settings)
    evaluation, more = (None, []) if splits.eval is None else without_unreadable(splits.eval, settings)
    samples = prepare_samples(Splits(train, evaluation), settings, seed)
    digest = f"{train.digest} {'' if evaluation is None else evaluation.digest}"
    samples.train = _fingerprinted(samples.train, digest)
    samples.eval = None if samples.eval is None else _fingerprinted(samples.eval, digest)

    def image(number: int) -> Image.Image:
        if number < len(train):
            return train.images(number)
        assert evaluation is not None
        return evaluation.images(number - len(train))

    return ImageSamples(samples, image, train.classes, unreadable + more)


def _fingerprinted(data: TokenisedData, digest: str) -> TokenisedData:
    """The samples with a fingerprint that tells other images with the same numbers apart."""
    return replace(data, fingerprint=digest_of(f"{data.fingerprint} {digest}".encode()))


def without_unreadable(split: ImageSplit, settings: Workload) -> tuple[ImageSplit, list[str]]:
    """The split without the files that cannot be decoded, and their paths; one of no files as it is.

    Every file is read and decoded once; what is found is cached as long as names, sizes and times stay. The digest
    becomes one of what is in the files too.

    Raises:
        DataError: they are more than `workload.max_unreadable` of all, or there is nothing else.
    """
    if not split.files:
        return split, []
    stats = [(file, Path(file).stat()) for file in split.files]
    state = digest_of(
        *(f"{file} {stat.st_size} {stat.st_mtime_ns}\n".encode("utf-8", "surrogateescape") for file, stat in stats)
    )
    path = cache_folder(settings) / f"images-{state}.json"
    found = load_or_make(path, state, f"what is unreadable in {split.source}", lambda: _look_through(split))
    broken = {int(index): str(why) for index, why in found["unreadable"].items()}
    split = replace(split, digest=f"{split.digest} {found['contents']}")
    if not broken:
        return split, []
    most = options_of(settings, ImageOptions).max_unreadable
    named = "; ".join(f"{split.files[index]} ({why})" for index, why in list(broken.items())[:NAMED])
    more = f"; and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
    seen = f"{len(broken)} of {len(split)} images of {split.source} cannot be read: {named}{more}"
    if len(broken) > most * len(split):
        raise DataError(
            f"{seen}; workload.max_unreadable allows {most:.0%} of them",
            "Bring the files back or take them out; or allow more, --set workload.max_unreadable=0.5.",
        )
    logger.warning("%s; they are left out (workload.max_unreadable: up to %s of all)", seen, f"{most:.0%}")
    rest = np.setdiff1d(np.arange(len(split)), list(broken))
    files = tuple(split.files[index] for index in rest)
    digest = f"{split.digest} without {sorted(broken)}"
    left = replace(split, images=partial(read_image, files), labels=split.labels[rest], files=files, digest=digest)
    return left, [split.files[index] for index in broken]


def _look_through(split: ImageSplit) -> dict[str, Any]:
    """Number of each unreadable file to why, and a digest of what is in all files, in their order."""
    with reading("workload.data_path", split.source):
        sizes = [Path(file).stat().st_size for file in split.files]
    progress, digests, unreadable = Progress(f"looking through {split.source}", sum(sizes), "bytes"), [], {}
    with ThreadPoolExecutor(usable_cores(), "looking") as pool:
        for index, (digest, why) in enumerate(pool.map(looked_at, split.files)):
            digests.append(digest)
            if why:
                unreadable[str(index)] = why
            progress.add(sizes[index])
    progress.end()
    return {"unreadable": unreadable, "contents": digest_of(*digests)}


def looked_at(path: str) -> tuple[bytes, str]:
    """Digest of what is in an image file, and why it cannot be decoded to its end; empty where it can."""
    digest = b""
    try:
        content = Path(path).read_bytes()
        digest = bytes.fromhex(digest_of(content))
        with Image.open(BytesIO(content)) as image:
            image.draft("RGB", DRAFT)
            eight_bits(image)
    except MemoryError:
        raise
    except Exception as error:  # decoders of damaged files fail in ways of their own
        return digest, first_line(error)
    return digest, ""
