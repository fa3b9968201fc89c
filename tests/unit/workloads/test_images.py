"""Images as samples: folders and MNIST's files, the square that a model sees, decoding ahead, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from photographs import CLASSES, cut_short, stripes, write_folder, write_mnist
from PIL import Image
from unit.workloads.conftest import configured

from dynbench.config.schema import Config
from dynbench.errors import ConfigError, DataError
from dynbench.workloads import images
from dynbench.workloads.cache import cache_folder
from dynbench.workloads.datasets.base import Splits, load_dataset
from dynbench.workloads.datasets.images import PHOTOGRAPHS, PREPROCESSOR, eight_bits, generated_digits, image_side
from dynbench.workloads.image_classification import ImageClassification
from dynbench.workloads.images import Decoder, looked_at, square, without_unreadable
from dynbench.workloads.mlp import DigitClassification


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


def test_a_long_thin_image_never_becomes_a_huge_one():
    with patch.object(Image.Image, "resize", autospec=True, side_effect=Image.Image.resize) as resized:
        assert square(Image.new("RGB", (1, 2000), "red"), 28).min(axis=(0, 1)).tolist() == [255, 0, 0]
    assert [call.args[1] for call in resized.call_args_list] == [(28, 28)]


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


def test_threads_decode_what_is_expected_before_it_is_asked_for_and_once():
    done, calls = threading.Event(), []

    def decode(number: int) -> np.ndarray:
        calls.append((number, threading.current_thread()))
        if number == 3:
            done.set()
        return np.full((1, 1, 3), number, np.uint8)

    decoder = Decoder(decode, 2)
    decoder.expect([1, 2])
    decoder.expect([1, 2, 3])
    assert done.wait(30)
    assert [image[0, 0, 0] for image in (*decoder([3, 1]), *decoder([2, 7]))] == [3, 1, 2, 7]
    assert sorted(number for number, _ in calls) == [1, 2, 3, 7]
    assert threading.current_thread() not in {thread for _, thread in calls}


SMALL = ("size=small", "image_size=16")


def of(folder: Path, *more: str, dataset: str = "image_folder", **options: bool) -> Config:
    name = "mlp" if dataset == "mnist" else "image_classification"
    return configured(f"name={name}", f"dataset={dataset}", f"data_path={folder}", *more, **options)


def load(folder: Path, dataset: str = "image_folder", **options: bool) -> Splits:
    return load_dataset(of(folder, dataset=dataset, **options).workload)


def test_a_pretrained_model_that_says_no_side_sees_photographs(tmp_path):
    for weights, named in (("weights=random", False), ("weights=pretrained", True)):
        side, reason = image_side(of(tmp_path, f"model={tmp_path}", weights).workload)
        assert (side, PREPROCESSOR in reason) == (PHOTOGRAPHS, named)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """24 training images, one of them broken."""
    cut_short(write_folder(tmp_path / "data") / "train" / "bee" / "03.jpg")
    return tmp_path / "data"


def test_a_broken_image_is_left_out_unless_there_are_too_many(folder):
    workload = ImageClassification(of(folder, *SMALL))
    assert workload.facts["unreadable"] == [str(folder / "train" / "bee" / "03.jpg")]
    assert np.bincount(workload.train.labels).tolist() == [8, 7, 8]
    batch = workload.collate(workload.train, np.arange(23), 1)
    assert batch["pixels"].float().mean((2, 3)).argmax(1).tolist() == batch["labels"].tolist()
    cut_short(folder / "train" / "ant" / "01.jpg")
    with pytest.raises(DataError, match=r"2 of 24 images.*workload.max_unreadable allows 5%"):
        ImageClassification(of(folder, *SMALL))
    assert len(ImageClassification(of(folder, *SMALL, "max_unreadable=0.1")).train) == 22


def test_they_are_looked_for_once(folder, monkeypatch):
    settings, looked, seen = of(folder).workload, [], looked_at
    monkeypatch.setattr(images, "looked_at", lambda path: looked.append(path) or seen(path))
    split = load_dataset(settings).train
    first = without_unreadable(split, settings)
    again = without_unreadable(split, settings)
    assert (again[1], again[0].digest, len(looked)) == (first[1], first[0].digest, 24)
    for cached in cache_folder(settings).glob("images-*.json"):
        cached.write_text("{")
    assert without_unreadable(split, settings)[1] == first[1]
    assert len(looked) == 48, "what was cached is damaged"
    write_folder(folder)
    assert without_unreadable(load_dataset(settings).train, settings)[1] == []


def test_what_is_no_image_or_has_no_known_range_is_unreadable(tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(b"")
    assert looked_at(str(path))[1]
    for kind in (np.float32, np.int32):
        Image.fromarray(np.ones((4, 4), kind)).save(path, "TIFF")
        assert "no known range (mode " in looked_at(str(path))[1]


def test_other_pixels_in_files_of_the_same_names_and_sizes_are_other_data(tmp_path):
    found = []
    for red in (0, 200):
        folder = tmp_path / str(red)
        (folder / "train" / "ant").mkdir(parents=True)
        Image.new("RGB", (8, 8), (red, 0, 0)).save(folder / "train" / "ant" / "0.bmp")
        settings = of(folder).workload
        found.append(without_unreadable(load_dataset(settings).train, settings)[0].digest)
    assert found[0] != found[1]


def test_folders_are_classes_in_order(tmp_path):
    (write_folder(tmp_path) / "train" / "ant" / "notes.txt").write_text("none of them")
    splits = load(tmp_path)
    assert splits.train.classes == splits.eval.classes == CLASSES
    assert (len(splits.train), len(splits.eval)) == (24, 6)
    assert splits.train.labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    image = splits.train.images(9)
    assert (image.mode, image.size) == ("RGB", (40, 30)) and image.getpixel((5, 5))[1] > 130


def test_other_sizes_are_other_data_and_what_goes_away_later_is_named(tmp_path):
    split = load(write_folder(tmp_path, val=0)).train
    assert load(tmp_path).train.digest == split.digest and load(tmp_path).eval is None
    cut_short(tmp_path / "train" / "bee" / "03.jpg")
    assert load(tmp_path).train.digest != split.digest
    (tmp_path / "train" / "ant" / "00.jpg").unlink()
    with pytest.raises(DataError, match=r"train/ant/00.jpg: the image cannot be read"):
        split.images(0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda root: (root / "trian" / "ant").mkdir(parents=True), "no folder 'train'.*Did you mean 'trian'"),
        (lambda root: (root / "train" / "ant").mkdir(parents=True), "train: no image in a folder of a class"),
        (lambda root: (write_folder(root) / "val" / "aunt").mkdir(), "train has no class 'aunt'.*Did you mean 'ant'"),
    ],
)
def test_other_folders_are_refused_by_name(tmp_path, make, said):
    make(tmp_path)
    with pytest.raises(DataError, match=said):
        load(tmp_path)


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "train.jpg").write_bytes(b"")
    for name, said in (("train.jpg", "is a file; expected the folder that holds it"), ("else", "does not exist")):
        with pytest.raises(ConfigError, match=said):
            load(tmp_path / name, paths=True)


def test_the_four_files_of_mnist_are_read_plain_or_packed(tmp_path):
    plain, packed = (load(write_mnist(tmp_path / str(kind), packed=kind), "mnist") for kind in (False, True))
    assert plain.train.digest == packed.train.digest != plain.eval.digest
    made = generated_digits()
    for found, wanted in ((plain.train, made.train), (plain.eval, made.eval), (packed.train, made.train)):
        assert (found.labels == wanted.labels[: len(found)]).all()
        assert (np.asarray(found.images(7)) == np.asarray(wanted.images(7))).all()
    workload = DigitClassification(of(tmp_path / "False", dataset="mnist"))
    assert (len(workload.train), len(workload.eval)) == (300, 60)
    assert sum(parameter.numel() for parameter in workload.build_model(0).parameters()) == 42_310
    for path in (tmp_path / "True").glob("t10k*"):
        path.unlink()
    assert load(tmp_path / "True", "mnist").eval is None


FAULTS: dict[str, tuple[str, Callable[[bytes], bytes] | None]] = {
    "there is no train-labels-idx1-ubyte": ("train-labels-idx1-ubyte", None),
    "there is no t10k-images-idx3-ubyte": ("t10k-images-idx3-ubyte", None),
    "its header says": ("train-images-idx3-ubyte", lambda whole: whole[:-5]),
    "no idx file of 3 dimensions": ("train-images-idx3-ubyte", lambda _: b"PNG"),
    "labels for the": ("train-labels-idx1-ubyte", lambda _: bytes((0, 0, 8, 1, 0, 0, 0, 60)) + bytes(60)),
    "label 200; expected 0 to 9": ("train-labels-idx1-ubyte", lambda whole: whole[:-1] + bytes([200])),
    "cannot be read": ("train-images-idx3-ubyte.gz", lambda _: b"\x1f\x8b" + b"0" * 40),
}
"""What is said, and the file that is spoilt in place of a plain one; None takes it away."""


@pytest.mark.parametrize("said", FAULTS)
def test_other_files_are_refused_by_name(tmp_path, said):
    name, spoilt = FAULTS[said]
    path = write_mnist(tmp_path) / name
    whole = path.with_suffix("").read_bytes()
    path.with_suffix("").unlink()
    if spoilt is not None:
        path.write_bytes(spoilt(whole))
    with pytest.raises(DataError, match=said):
        load(tmp_path, "mnist")
