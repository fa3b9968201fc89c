"""Folders of images and MNIST's files: what is read, and what is said of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from photographs import CLASSES, cut_short, write_folder, write_mnist

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.errors import ConfigError, DataError
from dynbench.workloads.datasets.base import Splits, load_dataset
from dynbench.workloads.datasets.images import generated_digits
from dynbench.workloads.mlp import DigitClassification


def configured(folder: Path, dataset: str, **options: bool) -> Config:
    name = "mlp" if dataset == "mnist" else "image_classification"
    given = (f"name={name}", f"dataset={dataset}", f"data_path={folder}")
    return load_config(None, [f"workload.{each}" for each in given], **options)


def load(folder: Path, dataset: str = "image_folder", **options: bool) -> Splits:
    return load_dataset(configured(folder, dataset, **options).workload)


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
    workload = DigitClassification(configured(tmp_path / "False", "mnist"))
    assert (len(workload.train), len(workload.eval)) == (300, 60)
    assert sum(parameter.numel() for parameter in workload.build_model(0).parameters()) == 42_310
    for path in (tmp_path / "True").glob("t10k*"):
        path.unlink()
    assert load(tmp_path / "True", "mnist").eval is None


def spoil(path: Path, last: int) -> None:
    path.write_bytes(path.read_bytes()[:-1] + bytes([last]))


FAULTS = {
    "there is no train-labels-idx1-ubyte": lambda train, test: train("labels-idx1").unlink(),
    "there is no t10k-images-idx3-ubyte": lambda train, test: test("images-idx3").unlink(),
    "its header says": lambda train, test: train("images-idx3").write_bytes(train("images-idx3").read_bytes()[:-5]),
    "no idx file of 3 dimensions": lambda train, test: train("images-idx3").write_bytes(b"PNG"),
    "labels for the": lambda train, test: train("labels-idx1").write_bytes(test("labels-idx1").read_bytes()),
    "label 200; expected 0 to 9": lambda train, test: spoil(train("labels-idx1"), 200),
    "cannot be read": lambda train, test: (
        train("images-idx3").rename(train("images-idx3").with_suffix(".gz")).write_bytes(b"\x1f\x8b" + b"0" * 40)
    ),
}


@pytest.mark.parametrize("said", FAULTS)
def test_other_files_are_refused_by_name(tmp_path, said):
    write_mnist(tmp_path)
    FAULTS[said](*(lambda what, begin=begin: tmp_path / f"{begin}-{what}-ubyte" for begin in ("train", "t10k")))
    with pytest.raises(DataError, match=said):
        load(tmp_path, "mnist")
