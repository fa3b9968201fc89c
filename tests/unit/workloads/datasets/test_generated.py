"""Generated texts: as long as they should be, of words that tell the class, and what is said of traces of lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from unit.workloads.conftest import configured

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.lengths import SHIPPED
from dynbench.workloads.datasets import generated
from dynbench.workloads.datasets.generated import generate_samples, load_embedded, load_lognormal
from dynbench.workloads.registry import build_workload

TRACE = np.random.default_rng(5).integers(1, 60, 400)


def loaded(path: Path, *more: str) -> Any:
    return build_workload(configured("dataset=lengths", f"data_path={path}", *more))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mine.npy"
    np.save(path, TRACE)
    return path


def test_lengths_are_those_of_the_corpus_and_of_the_published_benchmark():
    short, long = load_embedded(Workload()).train.data.lengths, load_lognormal(Workload()).train.data.lengths
    assert len(short) == len(long) == generated.TRAIN_SAMPLES
    assert abs(short.mean() - SHIPPED["sst2"].mean()) < 0.5
    assert (short.min(), long.min(), long.max()) == (3, 16, 1024)
    assert np.abs(np.log(np.quantile(long, (0.1587, 0.5, 0.8413))) - (4, 5, 6)).max() < 0.05


@pytest.mark.parametrize(
    "data", [load_embedded(Workload()).eval.data, generate_samples(np.array([1, 2, 3, 9]), 0)], ids=["drawn", "hashed"]
)
def test_special_tokens_frame_a_sample_and_one_token_is_the_first(data):
    for sample in np.split(data.tokens, data.offsets[1:-1]):
        assert (sample[0], *sample[1:][-1:]) == (generated.CLS_ID, generated.SEP_ID)[: len(sample)]
        assert all(generated.FIRST_WORD_ID <= word < generated.VOCAB_SIZE for word in sample[1:-1])


def test_hashed_words_are_as_likely_as_drawn_ones():
    theirs = load_embedded(Workload()).train.data
    ours = generate_samples(theirs.lengths, 0)
    assert abs(ours.labels.mean() - 0.5) < 0.02
    for label in (0, 1):
        shares = []
        for data in (ours, theirs):
            words = data.tokens[(np.repeat(data.labels, data.lengths) == label) & (data.tokens >= 1000)]
            shares.append(np.bincount(words - 1000, minlength=3096) / len(words))
        assert np.abs(shares[0] - shares[1]).max() < 0.005
        for share in shares:
            own = share[label * 48 : (label + 1) * 48]
            assert own.sum() == pytest.approx(0.3, abs=0.01) and own.min() > 0


def test_a_sample_depends_on_its_index_alone_and_a_cut_one_keeps_its_beginning(monkeypatch):
    whole, others, last = generate_samples(TRACE, 0), TRACE.copy(), np.arange(200, 400)
    others[:200] = others[:200][::-1]
    assert generate_samples(others, 0).take(last).fingerprint == whole.take(last).fingerprint
    assert generate_samples(np.minimum(TRACE, 20), 0).fingerprint == whole.truncate(20).fingerprint
    assert generate_samples(TRACE, 1).fingerprint != whole.fingerprint
    monkeypatch.setattr(generated, "CHUNK_TOKENS", 37)
    assert generate_samples(TRACE, 0).fingerprint == whole.fingerprint


def test_nothing_is_held_out_and_evaluation_is_generated_beside_it(tmp_path, trace):
    workload = loaded(trace)
    assert (workload.train.lengths.tolist(), len(workload.eval)) == (TRACE.tolist(), generated.EVAL_SAMPLES)
    assert set(workload.eval.lengths) <= set(TRACE)
    np.save(tmp_path / "eval.npy", [5, 7])
    workload = loaded(trace, f"eval_path={tmp_path / 'eval.npy'}")
    assert (len(workload.train), workload.eval.lengths.tolist()) == (len(TRACE), [5, 7])


def test_lengths_that_are_cut_are_counted_and_cost_no_more_than_what_is_left(tmp_path, trace, caplog):
    assert "workload.max_length" not in loaded(trace, "max_length=59").facts["decisions"]
    assert not caplog.text
    workload = loaded(trace, "max_length=40")
    assert workload.train.lengths.tolist() == np.minimum(TRACE, 40).tolist()
    seen = f"{int((TRACE > 40).sum())} of 400 lengths of {trace} are greater, up to 59"
    decision = workload.facts["decisions"]["workload.max_length"]
    assert seen in caplog.text and seen in decision["reason"] and decision["value"] == 40
    (tmp_path / "long.txt").write_text("2147483647\n3\n")
    assert loaded(tmp_path / "long.txt", "max_length=9").train.lengths.tolist() == [9, 3]


def test_columns_are_named_and_the_second_goes_with_the_samples(tmp_path):
    second = np.arange(400) % 7
    path = tmp_path / "two.csv"
    pl.DataFrame({"tokens": TRACE, "patches": second}).write_csv(path)
    with pytest.raises(DataError, match="no column 'length'"):
        loaded(path)
    plain, both = (loaded(path, "length_column=tokens", *more) for more in ([], ["second_column=patches"]))
    assert plain.train.second is None and both.train.second.tolist() == second.tolist()
    assert both.train.fingerprint != plain.train.fingerprint
    assert both.train.take(np.array([5, 3, 8])).second.tolist() == [5, 3, 1]
    assert both.train.truncate(10).second.tolist() == second.tolist()
    language = ("name=causal_lm", "size=tiny", "length_column=tokens", "second_column=patches", "subset=70")
    assert len(loaded(path, *language).train.second) == 70
