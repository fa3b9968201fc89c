"""Folders of images: classes by name, what is no image left alone, and what is said of other folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from photographs import CLASSES, cut_short, write_folder

from dynbench.config.layers import load_config
from dynbench.errors import ConfigError, DataError
from dynbench.workloads.datasets.image_folder import load


def settings(folder: Path, **load_options: bool):
    given = ("name=image_classification", "dataset=image_folder", f"data_path={folder}")
    return load_config(None, [f"workload.{each}" for each in given], **load_options).workload


def test_folders_are_classes_in_order(tmp_path: Path) -> None:
    (write_folder(tmp_path) / "train" / "ant" / "notes.txt").write_text("none of them")
    splits = load(settings(tmp_path))
    assert splits.train.classes == splits.eval.classes == CLASSES
    assert (len(splits.train), len(splits.eval)) == (24, 6)
    assert splits.train.labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    image = splits.train.images(9)
    assert (image.mode, image.size) == ("RGB", (40, 30))
    assert image.getpixel((5, 5))[1] > 130


def test_other_names_or_sizes_are_other_data(tmp_path: Path) -> None:
    first = load(settings(write_folder(tmp_path))).train.digest
    assert load(settings(tmp_path)).train.digest == first
    cut_short(tmp_path / "train" / "bee" / "03.jpg")
    assert load(settings(tmp_path)).train.digest != first


def test_without_evaluation_images(tmp_path: Path) -> None:
    assert load(settings(write_folder(tmp_path, val=0))).eval is None


def test_an_image_that_goes_away_later_is_named(tmp_path: Path) -> None:
    split = load(settings(write_folder(tmp_path))).train
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
def test_other_folders_are_refused_by_name(tmp_path: Path, make, said: str) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=said):
        load(settings(tmp_path))


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "train.jpg").write_bytes(b"")
    with pytest.raises(ConfigError, match="is a file; expected the folder that holds it"):
        settings(tmp_path / "train.jpg", paths=True)
    with pytest.raises(ConfigError, match="does not exist"):
        settings(tmp_path / "elsewhere", paths=True)
