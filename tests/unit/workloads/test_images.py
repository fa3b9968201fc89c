"""Images as samples: the square that a model sees, threads that decode ahead, and files that cannot be read."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from photographs import cut_short, stripes, write_folder
from PIL import Image

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.errors import DataError
from dynbench.workloads import images
from dynbench.workloads.datasets.base import load_dataset
from dynbench.workloads.datasets.images import eight_bits
from dynbench.workloads.image_classification import ImageClassification
from dynbench.workloads.images import Decoder, looked_at, square, without_unreadable


def by_hand(image: Image.Image, side: int) -> np.ndarray:
    """Resized whole so that the shorter side is 8/7 of the square, then cut."""
    scale = round(side * 8 / 7) / min(image.size)
    width, height = (round(length * scale) for length in image.size)
    left, top = (width - side) // 2, (height - side) // 2
    whole = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(whole.crop((left, top, left + side, top + side)))


@pytest.mark.parametrize("size", [(80, 41), (40, 97), (333, 500), (20, 30), (35, 35)])
def test_cutting_first_gives_what_cutting_last_does(size):
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8))
    found = square(image, 28)
    assert (found.shape, found.dtype) == ((28, 28, 3), np.uint8)
    assert np.abs(found.astype(int) - by_hand(image, 28)).max() <= 1
    exact = stripes(32)
    assert (square(exact, 32) == np.asarray(exact)).all(), "an image of the size stays as it is"
    grey = image.convert("L")
    assert (square(grey, 28) == square(grey.convert("RGB"), 28)).all(), "grey images become three colours"


def test_a_long_thin_image_never_becomes_a_huge_one(monkeypatch):
    sizes, resize = [], Image.Image.resize

    def watched(self: Image.Image, size: tuple[int, int], *more: object, **named: object) -> Image.Image:
        sizes.append(size)
        return resize(self, size, *more, **named)

    monkeypatch.setattr(Image.Image, "resize", watched)
    assert square(Image.new("RGB", (1, 2000), "red"), 28).min(axis=(0, 1)).tolist() == [255, 0, 0]
    assert sizes == [(28, 28)]


@pytest.mark.parametrize("ending", ["png", "pgm", "tif"])
def test_sixteen_bits_become_eight(tmp_path, ending):
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


def blank(number: int) -> np.ndarray:
    return np.full((1, 1, 3), number, np.uint8)


def test_threads_decode_what_is_expected_before_it_is_asked_for_and_once():
    done, calls = threading.Event(), []

    def decode(number: int) -> np.ndarray:
        calls.append((number, threading.current_thread()))
        if number == 3:
            done.set()
        return blank(number)

    decoder = Decoder(decode, 2)
    decoder.expect([1, 2])
    decoder.expect([1, 2, 3])
    assert done.wait(30)
    assert [image[0, 0, 0] for image in (*decoder([3, 1]), *decoder([2, 7]))] == [3, 1, 2, 7]
    assert sorted(number for number, _ in calls) == [1, 2, 3, 7]
    assert threading.current_thread() not in {thread for _, thread in calls}


def configured(root: Path, *more: str) -> Config:
    given = ["name=image_classification", "dataset=image_folder", "size=small", "image_size=16", *more]
    places = [f"data_path={root / 'data'}", f"cache_dir={root / 'cache'}"]
    return load_config(None, [*(f"workload.{each}" for each in (*given, *places)), "train.global_batch=4"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """24 training images, one of them broken."""
    write_folder(tmp_path / "data")
    cut_short(tmp_path / "data" / "train" / "bee" / "03.jpg")
    return tmp_path


def test_one_broken_image_is_counted_named_and_left_out(folder, caplog):
    workload = ImageClassification(configured(folder))
    assert workload.facts["unreadable"] == [str(folder / "data" / "train" / "bee" / "03.jpg")]
    (message,) = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert "1 of 24 images" in message and "bee/03.jpg (" in message and "truncated" in message
    assert np.bincount(workload.train.labels).tolist() == [8, 7, 8]
    batch = workload.collate(workload.train, np.arange(23), 1)
    assert batch["pixels"].float().mean((2, 3)).argmax(1).tolist() == batch["labels"].tolist()
    cut_short(folder / "data" / "train" / "ant" / "01.jpg")
    with pytest.raises(DataError, match=r"2 of 24 images.*workload.max_unreadable allows 5%"):
        ImageClassification(configured(folder))
    assert len(ImageClassification(configured(folder, "max_unreadable=0.1")).train) == 22


def test_they_are_looked_for_once(folder, monkeypatch):
    settings, looked, seen = configured(folder).workload, [], looked_at
    monkeypatch.setattr(images, "looked_at", lambda path: looked.append(path) or seen(path))
    split = load_dataset(settings).train
    first = without_unreadable(split, settings)
    again = without_unreadable(split, settings)
    assert (again[1], again[0].digest, len(looked)) == (first[1], first[0].digest, 24)
    for cached in (folder / "cache").glob("images-*.json"):
        cached.write_text("{")
    assert without_unreadable(split, settings)[1] == first[1]
    assert len(looked) == 48, "what was cached is damaged"
    write_folder(folder / "data")
    assert without_unreadable(load_dataset(settings).train, settings)[1] == []


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda path: path.write_bytes(b""), ""),
        (lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 60), ""),
        (lambda path: Image.fromarray(np.ones((4, 4), np.float32)).save(path, "TIFF"), "no known range (mode F)"),
        (lambda path: Image.fromarray(np.ones((4, 4), np.int32)).save(path, "TIFF"), "no known range (mode I)"),
    ],
)
def test_what_is_no_image_or_has_no_known_range_is_unreadable(tmp_path, write, said):
    write(tmp_path / "x.png")
    why = looked_at(str(tmp_path / "x.png"))[1]
    assert why and said in why


def test_other_pixels_in_files_of_the_same_names_and_sizes_are_other_data(tmp_path):
    found = []
    for red in (0, 200):
        for name in ("ant", "bee"):
            folder = tmp_path / str(red) / "data" / "train" / name
            folder.mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (8, 8), (red, 0, 0)).save(folder / f"{number}.bmp")
        settings = configured(tmp_path / str(red)).workload
        found.append(without_unreadable(load_dataset(settings).train, settings)[0].digest)
    assert found[0] != found[1]
