"""MNIST's files: plain or gzipped, and what is said of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from photographs import write_mnist

from dynbench.config.layers import load_config
from dynbench.errors import DataError
from dynbench.workloads.datasets.digits import generated
from dynbench.workloads.datasets.mnist import load, read_idx


def settings(folder: Path):
    given = ("name=mlp", "dataset=mnist", f"data_path={folder}")
    return load_config(None, [f"workload.{each}" for each in given]).workload


@pytest.mark.parametrize("packed", [False, True])
def test_the_four_files_are_read(tmp_path: Path, packed: bool) -> None:
    splits, wanted = load(settings(write_mnist(tmp_path, packed=packed))), generated()
    assert (len(splits.train), len(splits.eval)) == (300, 60)
    for found, made in ((splits.train, wanted.train), (splits.eval, wanted.eval)):
        assert (found.labels == made.labels[: len(found)]).all()
        assert (np.asarray(found.images(7)) == np.asarray(made.images(7))).all()


def test_digits_to_evaluate_on_may_be_missing(tmp_path: Path) -> None:
    for path in write_mnist(tmp_path).glob("t10k*"):
        path.unlink()
    assert load(settings(tmp_path)).eval is None


def test_equal_digits_have_equal_digests_however_they_are_stored(tmp_path: Path) -> None:
    plain, packed = (load(settings(write_mnist(tmp_path / str(kind), packed=kind))) for kind in (False, True))
    assert plain.train.digest == packed.train.digest != plain.eval.digest


FAULTS = {
    "there is no train-labels-idx1-ubyte": lambda folder: (folder / "train-labels-idx1-ubyte").unlink(),
    "there is no t10k-images-idx3-ubyte": lambda folder: (folder / "t10k-images-idx3-ubyte").unlink(),
    "its header says": lambda folder: shorten(folder / "train-images-idx3-ubyte"),
    "no idx file of 3 dimensions": lambda folder: (folder / "train-images-idx3-ubyte").write_bytes(b"PNG"),
    "labels for the": lambda folder: (folder / "train-labels-idx1-ubyte").write_bytes(
        (folder / "t10k-labels-idx1-ubyte").read_bytes()
    ),
    "label 200; expected 0 to 9": lambda folder: spoil(folder / "train-labels-idx1-ubyte"),
}


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] = 200
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("said", FAULTS)
def test_other_files_are_refused_by_name(tmp_path: Path, said: str) -> None:
    FAULTS[said](write_mnist(tmp_path))
    with pytest.raises(DataError, match=said):
        load(settings(tmp_path))


def test_a_broken_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(b"\x1f\x8b" + b"0" * 40)
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(path, 3)
