"""What is read before any rank starts: texts that are read as a stream too, to their end."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from dynbench.config.layers import load_config
from dynbench.config.part_rules import with_global_batch
from dynbench.config.schema import Config
from dynbench.errors import DataError, HubError, UsageError
from dynbench.workloads import hub
from dynbench.workloads.cache import contents_of
from dynbench.workloads.datasets.base import load_dataset
from dynbench.workloads.inputs import check_batch, check_inputs


def configured(path: Path, *overrides: str) -> Config:
    named = ["workload.name=causal_lm", "workload.dataset=json", f"workload.data_path={path}"]
    return load_config(None, [*named, *overrides])


def check(path: Path, *overrides: str) -> None:
    config = configured(path, *overrides)
    check_batch(with_global_batch(config, 2), check_inputs(config))


def written(path: Path, number: int) -> Path:
    path.write_text(json.dumps([{"id": str(i), "title": "t", "text": "x" * 100} for i in range(number)]))
    return path


def test_a_mistake_at_the_end_of_a_stream_is_found(tmp_path):
    whole, broken = (written(tmp_path / name, 200) for name in ("a.json", "b.json"))
    broken.write_text(broken.read_text()[:-1])
    check(whole)
    for given in ([broken], [whole, f"workload.eval_path={broken}"]):
        with pytest.raises(DataError, match="premature EOF"):
            check(*given)


@pytest.fixture
def labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Settings of labelled texts in a file, and folders `none`, no model's, and `shape`, a model's without weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "why_unreachable", lambda *_: "no route")
    Path("texts.csv").write_text("sentence,label\n" + "some words,0\nothers,1\n" * 20)
    for folder, file, text in (("none", "readme.txt", "hi"), ("shape", "config.json", '{"model_type": "distilbert"}')):
        Path(folder).mkdir()
        Path(folder, file).write_text(text)
    return ["workload.dataset=csv", "workload.data_path=texts.csv"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("model=nobody/nothing", "'nobody/nothing' is not in the hub's cache"),
        ("tokenizer=none", "none: expected a tokenizer"),
        ("tokenizer=bytes size=model model=none", "expected a model"),
        ("tokenizer=bytes weights=pretrained model=none", "a model"),
        ("tokenizer=bytes weights=pretrained model=shape", "no weights"),
        ("tokenizer=bytes", None),
        ("tokenizer=bytes model=none", None),
        ("tokenizer=bytes size=model model=shape", None),
    ],
)
def test_what_the_ranks_read_of_tokenizer_and_model_is_read_before_and_no_more(labelled, settings, said):
    config = load_config(None, [*labelled, *(f"workload.{each}" for each in settings.split())])
    with pytest.raises((DataError, HubError), match=said) if said else nullcontext():
        assert len(check_inputs(config).train) == 40


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ("train.global_batch=18", None),
        ("train.global_batch=19", 18),
        ("train.global_batch=19 workload.blocks=true", None),
        ("train.batch_per_worker=10", 18),
        ("train.batch_per_worker=5 workload.subset=10", None),
        ("train.batch_per_worker=6 workload.subset=10", 10),
    ],
)
def test_texts_may_be_too_few_for_a_batch_of_all_workers_but_their_blocks_are_not_known(tmp_path, settings, most):
    """Of 20, 2 are held out."""
    with pytest.raises(UsageError, match=rf"\n.*at most {most} over all workers") if most else nullcontext():
        check(written(tmp_path / "a.json", 20), *settings.split())


@pytest.mark.parametrize(("workload", "samples"), [("mlp", 8192), ("image_classification", 4096), ("causal_lm", 8192)])
def test_generated_samples_are_counted_too(workload, samples):
    def batch(number: int) -> None:
        config = load_config(None, [f"workload.name={workload}", f"train.global_batch={number}"])
        check_batch(config, check_inputs(config))

    batch(samples)
    with pytest.raises(UsageError, match=f"has {samples:,} samples"):
        batch(samples + 1)


def test_what_an_earlier_run_has_read_is_not_read_again_while_it_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "cache"))
    path = written(tmp_path / "a.json", 200)
    contents_of(tmp_path / "cache", load_dataset(configured(path).workload).train)
    with monkeypatch.context() as patch:
        patch.setattr("dynbench.workloads.datasets.text_files.ijson.items", lambda *_, **__: pytest.fail("read again"))
        check(path)
        with pytest.raises(UsageError, match="has 200 samples"):
            check(path, "train.global_batch=201")
    path.write_text(path.read_text()[:-1])
    with pytest.raises(DataError, match="premature EOF"):
        check(path)
