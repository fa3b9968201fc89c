"""The square that a model sees, and threads that decode ahead of the step."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from photographs import stripes
from PIL import Image

from dynbench.workloads.decoding import Decoder, eight_bits, square


def test_an_image_of_the_size_stays_as_it_is() -> None:
    image = stripes(32)
    assert (square(image, 32) == np.asarray(image)).all()


@pytest.mark.parametrize("size", [(80, 40), (40, 80), (35, 35), (61, 300)])
def test_the_shorter_side_is_resized_and_the_centre_cut_out(size: tuple[int, int]) -> None:
    width, height = size
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[height // 2 - 1 : height // 2 + 2, width // 2 - 1 : width // 2 + 2] = 255
    found = square(Image.fromarray(pixels), 28)
    assert (found.shape, found.dtype) == ((28, 28, 3), np.uint8)
    rows, columns = np.nonzero(found[..., 0] > 60)
    assert abs(rows.mean() - 13.5) <= 2.5 and abs(columns.mean() - 13.5) <= 2.5


def test_the_shorter_side_is_8_sevenths_of_the_square() -> None:
    """Half of the picture is white: of a 64 by 128 one resized to 64 pixels a side of 56, so is half of the square."""
    pixels = np.zeros((64, 128, 3), np.uint8)
    pixels[:, 64:] = 255
    found = square(Image.fromarray(pixels), 56)
    assert found[:, :27].max() == 0 and found[:, 29:].min() == 255
    grey = square(Image.fromarray(pixels[..., 0]), 56)
    assert (grey == found).all(), "grey images become three colours"


def test_threads_decode_what_is_expected_before_it_is_asked_for() -> None:
    done, callers = threading.Event(), set()

    def decode(number: int) -> np.ndarray:
        callers.add(threading.current_thread())
        if number == 3:
            done.set()
        return np.full((1, 1, 3), number, np.uint8)

    decoder = Decoder(decode, 2)
    decoder.expect([1, 2, 3])
    assert done.wait(30)
    assert [image[0, 0, 0] for image in decoder([3, 1, 7])] == [3, 1, 7]
    assert threading.current_thread() not in callers


def test_what_is_expected_is_decoded_once_and_kept_until_it_is_asked_for() -> None:
    numbers = []
    decoder = Decoder(lambda number: numbers.append(number) or np.zeros((1, 1, 3), np.uint8), 1)
    decoder.expect([1, 2])
    decoder.expect([1, 2, 3])
    decoder([1, 2])
    decoder([3])
    assert sorted(numbers) == [1, 2, 3]


def test_a_fault_of_an_image_is_raised_where_it_is_asked_for() -> None:
    def broken(number: int) -> np.ndarray:
        raise OSError(f"image {number}")

    decoder = Decoder(broken, 1)
    decoder.expect([5])
    with pytest.raises(OSError, match="image 5"):
        decoder([5])


def test_without_threads_images_are_decoded_here() -> None:
    callers = []
    decoder = Decoder(lambda _: callers.append(threading.current_thread()) or np.zeros((1, 1, 3), np.uint8), 0)
    decoder.expect([1])
    assert callers == []
    decoder([1])
    assert callers == [threading.current_thread()]


def by_hand(image: Image.Image, side: int) -> np.ndarray:
    """Resized whole, then cut."""
    scale = round(side * 8 / 7) / min(image.size)
    width, height = (round(length * scale) for length in image.size)
    left, top = (width - side) // 2, (height - side) // 2
    whole = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(whole.crop((left, top, left + side, top + side)))


@pytest.mark.parametrize("size", [(80, 41), (40, 97), (333, 500), (20, 30)])
def test_cutting_first_gives_what_cutting_last_does(size: tuple[int, int]) -> None:
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8))
    apart = np.abs(square(image, 28).astype(int) - by_hand(image, 28))
    assert apart.max() <= 1


def test_a_long_thin_image_never_becomes_a_huge_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, resize = [], Image.Image.resize

    def watched(self: Image.Image, size: tuple[int, int], *more: object, **named: object) -> Image.Image:
        sizes.append(size)
        return resize(self, size, *more, **named)

    monkeypatch.setattr(Image.Image, "resize", watched)
    assert square(Image.new("RGB", (1, 2000), "red"), 28).min(axis=(0, 1)).tolist() == [255, 0, 0]
    assert sizes == [(28, 28)]


@pytest.mark.parametrize("ending", ["png", "pgm", "tif"])
def test_sixteen_bits_become_eight(tmp_path: Path, ending: str) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    path = tmp_path / f"ramp.{ending}"
    if ending == "pgm":
        path.write_bytes(b"P5 16 16 65535\n" + ramp.astype(">u2").tobytes())
    else:
        Image.fromarray(ramp).save(path)
    with Image.open(path) as image:
        seen = np.asarray(eight_bits(image))
    assert seen.shape == (16, 16, 3)
    assert (seen == (ramp >> 8).astype(np.uint8)[..., None]).all(), "white squares, where they are clipped"


def test_numbers_of_no_known_range_are_refused() -> None:
    for kind, mode in ((np.float32, "F"), (np.int32, "I")):
        with pytest.raises(ValueError, match=f"no known range .mode {mode}."):
            eight_bits(Image.fromarray(np.ones((4, 4), kind)))
