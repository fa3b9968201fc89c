"""What is read before any rank starts: texts that are read as a stream too, to their end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynbench.config.load import load_config
from dynbench.errors import DataError, UsageError
from dynbench.workloads.inputs import check_batch


def check(path: Path, *overrides: str) -> None:
    named = ["workload.name=causal_lm", "workload.dataset=json", f"workload.data_path={path}"]
    check_batch(load_config(None, [*named, *overrides]))


def written(path: Path, number: int) -> Path:
    path.write_text(json.dumps([{"id": str(i), "title": "t", "text": "x" * 100} for i in range(number)]))
    return path


def test_a_mistake_at_the_end_of_a_stream_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", 200)
    check(path)
    path.write_text(path.read_text()[:-1])
    with pytest.raises(DataError, match="premature EOF"):
        check(path)
    with pytest.raises(DataError, match="premature EOF"):
        check(written(tmp_path / "b.json", 200), f"workload.eval_path={path}")


def test_texts_are_too_few_for_a_batch_but_their_blocks_are_not_known(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", 20)
    with pytest.raises(UsageError, match="has 20 samples, 2 of which are held out"):
        check(path, "train.global_batch=19")
    check(path, "train.global_batch=19", "workload.blocks=true")


def test_a_batch_for_each_worker_is_no_batch_yet(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", 20)
    check(path, "train.batch_per_worker=4")
    with pytest.raises(UsageError, match=r"train.global_batch: 64 is more than there is"):
        check(path)
