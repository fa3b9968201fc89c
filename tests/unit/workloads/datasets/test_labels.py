"""Labels as people write them become classes in order, the same wherever the file is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.datasets.labels import MOST_CLASSES, numbered_as, read_label
from dynbench.workloads.datasets.registry import load_dataset


def _jsonl(labels: list[object]) -> str:
    return "".join(json.dumps({"sentence": "a b", "label": label}) + "\n" for label in labels)


def _table(separator: str, labels: list[object]) -> str:
    return f"sentence{separator}label\n" + "".join(f"a b{separator}{label}\n" for label in labels)


WRITERS = {
    "tsv": lambda labels: _table("\t", labels),
    "csv": lambda labels: _table(",", labels),
    "jsonl": _jsonl,
}
HEADER = {"tsv": 1, "csv": 1, "jsonl": 0}


def load(folder: Path, dataset: str, labels: list[object], evaluation: list[object] | None = None):
    (folder / "train").write_text(WRITERS[dataset](labels), encoding="utf-8")
    paths = {"data_path": str(folder / "train")}
    if evaluation is not None:
        (folder / "dev").write_text(WRITERS[dataset](evaluation), encoding="utf-8")
        paths["eval_path"] = str(folder / "dev")
    return load_dataset(Workload(dataset=dataset, **paths))


@pytest.mark.parametrize("dataset", WRITERS)
@pytest.mark.parametrize(
    ("labels", "classes", "indices"),
    [
        ([1, 0, 1, 2], (), [1, 0, 1, 2]),
        (["1", "0", " 2 "], (), [1, 0, 2]),
        (["1.0", "0", "1"], (), [1, 0, 1]),
        ([4, 0, 4], ("0", "4"), [1, 0, 1]),
        ([1, -1, 10, 2], ("-1", "1", "2", "10"), [1, 0, 3, 2]),
        ([70_000, 90_000], ("70000", "90000"), [0, 1]),
        (["positive", "negative", "positive "], ("negative", "positive"), [1, 0, 1]),
        (["true", "false"], ("false", "true"), [1, 0]),
        (["٣", "a"], ("a", "٣"), [1, 0]),
        ([0], (), [0]),
    ],
)
def test_the_different_labels_in_order_are_the_classes(tmp_path, dataset, labels, classes, indices) -> None:
    splits = load(tmp_path, dataset, labels, labels[:1])
    assert splits.train.labels.tolist() == indices
    assert splits.eval.labels.tolist() == indices[:1]
    assert splits.train.classes == splits.eval.classes == classes


def test_json_values_mean_what_tables_write() -> None:
    same = [(1, "1"), (1.0, "1.0"), (True, "true"), (False, "false"), ("x", " x")]
    assert all(read_label("here", value) == read_label("here", text) for value, text in same)


@pytest.mark.parametrize("dataset", WRITERS)
@pytest.mark.parametrize(
    ("labels", "line", "said"),
    [
        ([0, 1, "good"], 3, "label 'good' beside 0 of"),
        (["good", 1], 2, "label 1 beside 'good' of"),
        (["0.5", "0.25"], 1, "label '0.5'; expected an integer or a word"),
        ([0, "1e-3"], 2, "label '1e-3'; expected an integer or a word"),
        (["a word of a text that goes on " * 10], 1, "...; expected an integer or a word"),
        ([f"id{index}" for index in range(MOST_CLASSES + 1)], MOST_CLASSES + 1, "makes 1,001 different ones"),
        (list(range(MOST_CLASSES + 1)), MOST_CLASSES + 1, "expected at most 1,000 classes"),
        (["", "x"], 1, "no label"),
    ],
)
def test_what_cannot_be_a_class_is_named_with_its_line(tmp_path, dataset, labels, line, said) -> None:
    with pytest.raises(DataError) as caught:
        load(tmp_path, dataset, labels)
    assert caught.value.message.startswith(f"{tmp_path / 'train'}:{line + HEADER[dataset]}: ")
    assert said in caught.value.message


@pytest.mark.parametrize("dataset", WRITERS)
@pytest.mark.parametrize(("labels", "other"), [(["b", "a"], "c"), ([0, 2], 1), ([0, 1], "a")])
def test_a_label_that_training_never_shows_is_refused(tmp_path, dataset, labels, other) -> None:
    with pytest.raises(DataError) as caught:
        load(tmp_path, dataset, labels, [labels[0], other])
    known = ", ".join(map(repr, sorted(labels)))
    assert caught.value.message.startswith(f"{tmp_path / 'dev'}:{2 + HEADER[dataset]}: label {other!r}")
    assert caught.value.message.endswith(f"expected one of {tmp_path / 'train'}: {known}")


@pytest.mark.parametrize(
    ("labels", "names", "numbers"),
    [
        (["c", "b"], ("a", "b", "c"), [2, 1]),
        ([1, 2], ("0", "1", "2"), [1, 2]),
        ([5, 1], ("1", "2", "5"), [2, 0]),
        ([0, 1], ("LABEL_0", "LABEL_1", "LABEL_2"), [0, 1]),
        ([2, 0], ("dog", "cat", "bee"), [2, 0]),
        (["cat", "dog"], ("dog", "cat", "bee"), [1, 0]),
        (["b", "d"], ("a", "b", "c"), "class 'd'; expected one of a model: 'a', 'b', 'c'"),
        ([0, 1], ("1", "2", "5"), "class '0'"),
        ([1, 3], ("dog", "cat", "bee"), "class '3'"),
        (["dog", "cat"], ("LABEL_0", "LABEL_1"), "class 'cat'"),
    ],
)
def test_labels_become_the_classes_of_a_model_by_name(tmp_path, labels, names, numbers) -> None:
    splits = load(tmp_path, "jsonl", labels, labels[:1])
    if isinstance(numbers, str):
        with pytest.raises(DataError, match=numbers):
            numbered_as(splits, names, "a model")
        return
    known = numbered_as(splits, names, "a model")
    assert (known.train.labels.tolist(), known.eval.labels.tolist()) == (numbers, numbers[:1])
    assert known.train.classes == known.eval.classes == names
