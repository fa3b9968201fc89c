"""Images as arrays: resized, cut and decoded by threads, those of the next step while this one is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

SIXTEEN_BITS = ("PNG", "PPM")
"""Formats whose whole numbers are of 16 bits, whatever Pillow holds them in."""
RESIZED = 8 / 7
"""Shorter side before the centre is cut out, of the square's: 256 pixels for 224."""


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
        threads: how many work ahead, and share what is asked for at once; 0 for none.
    """

    def __init__(self, decode: Callable[[int], Pixels], threads: int) -> None:
        self._decode = decode
        self._pool = ThreadPoolExecutor(threads, "decoding") if threads else None
        self._expected: dict[int, Future[Pixels]] = {}

    def expect(self, numbers: Iterable[int]) -> None:
        """Begin with images that will be asked for next; what was expected before and not asked for is dropped."""
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
