"""What is read before any rank starts: texts that are read as a stream too, to their end."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from architectures import write_config
from unit.workloads.conftest import configured

from dynbench.config.part_rules import with_global_batch
from dynbench.config.schema import Config
from dynbench.errors import DataError, HubError, UsageError
from dynbench.workloads import hub
from dynbench.workloads.cache import cache_folder, contents_of
from dynbench.workloads.datasets.base import load_dataset
from dynbench.workloads.inputs import check_batch, check_inputs


def of(path: Path, *overrides: str) -> Config:
    return configured("name=causal_lm", "dataset=json", f"data_path={path}", *overrides)


def check(path: Path, *overrides: str) -> None:
    config = of(path, *overrides)
    check_batch(with_global_batch(config, 2), check_inputs(config))


def written(path: Path, number: int) -> Path:
    path.write_text(json.dumps([{"id": str(i), "title": "t", "text": "x" * 100} for i in range(number)]))
    return path


def test_a_mistake_at_the_end_of_a_stream_is_found(tmp_path):
    whole, broken = (written(tmp_path / name, 200) for name in ("a.json", "b.json"))
    broken.write_text(broken.read_text()[:-1])
    check(whole)
    with pytest.raises(DataError, match="premature EOF"):
        check(whole, f"workload.eval_path={broken}")


@pytest.fixture
def labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Settings of labelled texts in a file, and folders `none`, no model's, and `shape`, a model's without weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "why_unreachable", lambda *_: "no route")
    Path("texts.csv").write_text("sentence,label\n" + "some words,0\nothers,1\n" * 20)
    Path("none").mkdir()
    Path("none", "readme.txt").touch()
    write_config(Path("shape"), "distilbert")
    return ["dataset=csv", "data_path=texts.csv"]


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
    with pytest.raises((DataError, HubError), match=said) if said else nullcontext():
        assert len(check_inputs(configured(*labelled, *settings.split())).train) == 40


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
    for most, refused in (
        (samples, nullcontext()),
        (samples + 1, pytest.raises(UsageError, match=f"has {samples:,}")),
    ):
        config = configured(f"name={workload}", f"train.global_batch={most}")
        with refused:
            check_batch(config, check_inputs(config))


def test_what_an_earlier_run_has_read_is_not_read_again_while_it_stays(tmp_path, monkeypatch):
    path = written(tmp_path / "a.json", 200)
    contents_of(cache_folder(of(path).workload), load_dataset(of(path).workload).train)
    with monkeypatch.context() as patch:
        patch.setattr("dynbench.workloads.datasets.text_files.ijson.items", lambda *_, **__: pytest.fail("read again"))
        check(path)
        with pytest.raises(UsageError, match="has 200 samples"):
            check(path, "train.global_batch=201")
    path.write_text(path.read_text()[:-1])
    with pytest.raises(DataError, match="premature EOF"):
        check(path)
