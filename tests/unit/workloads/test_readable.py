"""Image files that cannot be read: found once, counted, named, left out, and refused above a share."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from photographs import cut_short, write_folder
from PIL import Image

from dynbench.config.layers import load_config
from dynbench.errors import DataError
from dynbench.workloads import readable
from dynbench.workloads.datasets.image_folder import load
from dynbench.workloads.image_classification import ImageClassification
from dynbench.workloads.readable import without_unreadable

SETTINGS = ("name=image_classification", "dataset=image_folder", "size=small", "image_size=16")


def configured(root: Path, *more: str):
    given = [*SETTINGS, f"data_path={root / 'data'}", f"cache_dir={root / 'cache'}", *more]
    return load_config(None, [*(f"workload.{each}" for each in given), "train.global_batch=4"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """24 training images, one of them broken."""
    write_folder(tmp_path / "data")
    cut_short(tmp_path / "data" / "train" / "bee" / "03.jpg")
    return tmp_path


def test_one_broken_image_is_counted_named_and_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        workload = ImageClassification(configured(folder))
    assert len(workload.train) == 23
    assert workload.facts["unreadable"] == [str(folder / "data" / "train" / "bee" / "03.jpg")]
    (said,) = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert "1 of 24 images" in said and "bee/03.jpg (" in said and "truncated" in said
    assert np.bincount(workload.train.labels).tolist() == [8, 7, 8]
    batch = workload.collate(workload.train, np.arange(23), 1)
    brightest = batch["pixels"].float().mean((2, 3)).argmax(1)
    assert brightest.tolist() == batch["labels"].tolist(), "images and labels stay together"


def test_above_the_share_they_are_refused(folder: Path) -> None:
    cut_short(folder / "data" / "train" / "ant" / "01.jpg")
    with pytest.raises(DataError, match=r"2 of 24 images.*workload.max_unreadable allows 5%"):
        ImageClassification(configured(folder))
    assert len(ImageClassification(configured(folder, "max_unreadable=0.1")).train) == 22


def test_they_are_looked_for_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, looked = configured(folder), []
    seen = readable.looked_at
    monkeypatch.setattr(readable, "looked_at", lambda path: looked.append(path) or seen(path))
    split = load(config.workload).train
    first = without_unreadable(split, config.workload)
    assert len(looked) == 24
    assert without_unreadable(split, config.workload)[1] == first[1]
    assert len(looked) == 24
    for kept in (folder / "cache").glob("images-*.json"):
        kept.write_text("{")
    assert without_unreadable(split, config.workload)[1] == first[1]
    assert len(looked) == 48, "what was kept is damaged"
    write_folder(folder / "data")
    assert without_unreadable(load(config.workload).train, config.workload)[1] == ()


@pytest.mark.parametrize("content", [b"", b"no image at all", b"\x89PNG\r\n\x1a\n" + b"\0" * 60])
def test_what_is_no_image_is_unreadable(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(content)
    assert readable.looked_at(str(path))[1]


def test_what_has_no_known_range_is_left_out(tmp_path: Path) -> None:
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "x.tif")
    assert "mode F" in readable.looked_at(str(tmp_path / "x.tif"))[1]


def test_other_pixels_in_files_of_the_same_names_and_sizes_are_other_data(tmp_path: Path) -> None:
    found = []
    for red in (0, 200):
        root = tmp_path / str(red)
        for name in ("ant", "bee"):
            (root / "data" / "train" / name).mkdir(parents=True)
            for number in range(4):
                image = Image.new("RGB", (8, 8), (red, 0, 0))
                image.save(root / "data" / "train" / name / f"{number}.bmp")
        found.append(without_unreadable(load(configured(root).workload).train, configured(root).workload)[0].digest)
        again = without_unreadable(load(configured(root).workload).train, configured(root).workload)[0].digest
        assert again == found[-1], "kept as it was found"
    assert found[0] != found[1]
