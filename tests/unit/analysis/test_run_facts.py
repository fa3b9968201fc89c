"""What a run's data came to, told in summary.md and after training."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dynbench.analysis.run_facts import SHOWN_LABELS, read_data
from dynbench.analysis.summary import summarise
from dynbench.cli.options import Settings
from dynbench.cli.train import _show_result
from dynbench.experiment.training import TrainingResult
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

CONFIGURED = 64
TRAIN = {"samples": 9, "tokens": 75, "cut_samples": 3, "cut_tokens": 25}
FEW = "9 training samples are too few to hold some out"
CASES = [
    ({}, {}),
    ({"fingerprint": "an older version's"}, {}),
    (
        {"train": TRAIN, "eval": {"samples": 1}, "decisions": {"workload.eval": {"value": 1, "reason": "no file"}}},
        {
            "data": "9 samples trained on; 1 more held out of the training data, for evaluation",
            "cut": "3 training samples to 64 tokens, which removed 25 tokens (25.0% of all)",
        },
    ),
    (
        {"train": TRAIN | {"cut_samples": 0}, "eval": {"samples": 1024, "cut_samples": 2, "cut_tokens": 7}},
        {
            "data": "9 samples trained on; 1,024 others for evaluation",
            "cut": "2 evaluation samples to 64 tokens, which removed 7 tokens",
        },
    ),
    (
        {"train": {"samples": 9}, "eval": None, "decisions": {"workload.eval": {"value": 0, "reason": FEW}}},
        {"data": f"9 samples trained on; none for evaluation: {FEW}"},
    ),
    (
        {"train": TRAIN, "eval": None, "decisions": {"workload.max_length": {"value": 32}}, "labels": {"a": 0, "b": 1}},
        {
            "data": "9 samples trained on; none for evaluation",
            "cut": "3 training samples to 32 tokens, which removed 25 tokens (25.0% of all)",
            "labels": "a=0, b=1",
        },
    ),
]


@pytest.mark.parametrize(("data", "lines"), CASES)
def test_what_was_recorded_is_told(data: dict[str, object], lines: dict[str, str]) -> None:
    assert dict(read_data({"data": data}, CONFIGURED).lines()) == lines


def test_many_classes_are_counted() -> None:
    labels = {f"c{index:02}": index for index in range(30)}
    named = read_data({"data": {"labels": labels}}).named_labels
    assert named.startswith("c00=0, c01=1, ") and named.endswith(", … (30 classes)")
    assert named.count("=") == SHOWN_LABELS


@pytest.mark.parametrize(("data", "lines"), CASES)
def test_it_stands_in_the_summary_and_after_training(
    make_run: Callable[..., Run],
    store: RunStore,
    capsys: pytest.CaptureFixture[str],
    data: dict[str, object],
    lines: dict[str, str],
) -> None:
    run = make_run("static", overrides=("workload.max_length=64",))
    write_json(run.env_file, run.env() | {"data": data})

    _show_result(TrainingResult(run, summarise(run)), store, Settings(verbosity=1))

    page = (run.path / "summary.md").read_text(encoding="utf-8")
    assert [word for word in ("Data", "Cut", "Labels") if f"**{word}:** " in page] == [
        word.capitalize() for word in lines
    ]
    printed = capsys.readouterr().out.splitlines()
    for word, sentence in lines.items():
        assert f"**{word.capitalize()}:** {sentence}." in page
        assert f"{word:<10}{sentence}" in printed
