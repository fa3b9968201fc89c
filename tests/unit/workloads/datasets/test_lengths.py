from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import transformers
from batches import batch_of

from dynbench.config.schema import Config, Train, Workload
from dynbench.errors import DataError, UsageError
from dynbench.trace_files import READERS, encode_trace
from dynbench.workloads.datasets import embedded, lengths
from dynbench.workloads.micro_batch import make_micro_batch
from dynbench.workloads.registry import build_workload

TRACE = np.random.default_rng(5).integers(1, 60, 400)


def settings(path: Path, **more: object) -> Workload:
    return Workload(dataset="lengths", data_path=str(path), **more)


def loaded(path: Path, seed: int = 0, **more: object):
    return build_workload(Config(workload=settings(path, **more), train=Train(seed=seed)))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mine.npy"
    np.save(path, TRACE)
    return path


@pytest.mark.parametrize("suffix", READERS)
def test_every_format_gives_the_same_samples_with_exactly_its_lengths(tmp_path, trace, suffix):
    path = tmp_path / f"other{suffix}"
    path.write_bytes(encode_trace(TRACE, path))
    found = loaded(path)
    assert found.train.lengths.tolist() == TRACE.tolist()
    assert found.train.fingerprint == loaded(trace).train.fingerprint
    assert found.eval.fingerprint == loaded(trace).eval.fingerprint


def test_special_tokens_frame_a_sample_and_one_token_is_the_first():
    data = lengths.generate(np.array([1, 2, 3, 9]), 0)
    samples = [data.tokens[a:b].tolist() for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]
    assert samples[:2] == [[embedded.CLS_ID], [embedded.CLS_ID, embedded.SEP_ID]]
    for sample in samples[2:]:
        assert (sample[0], sample[-1]) == (embedded.CLS_ID, embedded.SEP_ID)
        assert all(embedded.FIRST_WORD_ID <= word < embedded.VOCAB_SIZE for word in sample[1:-1])


def test_a_sample_depends_on_its_index_alone_and_a_cut_one_keeps_its_beginning(monkeypatch):
    whole = lengths.generate(TRACE, 0)
    others = TRACE.copy()
    others[:200] = others[:200][::-1]
    assert lengths.generate(others, 0).take(np.arange(200, 400)).fingerprint == (
        whole.take(np.arange(200, 400)).fingerprint
    )
    assert lengths.generate(np.minimum(TRACE, 20), 0).fingerprint == whole.truncate(20).fingerprint
    assert lengths.generate(TRACE, 1).fingerprint != whole.fingerprint
    monkeypatch.setattr(lengths, "CHUNK_TOKENS", 37)
    assert lengths.generate(TRACE, 0).fingerprint == whole.fingerprint


def test_words_are_as_likely_as_in_embedded_and_tell_the_label():
    theirs = embedded.load(Workload()).train.data
    ours = lengths.generate(theirs.lengths, 0)
    assert abs(ours.labels.mean() - 0.5) < 0.02
    for label in (0, 1):
        shares = []
        for data in (ours, theirs):
            words = data.tokens[(np.repeat(data.labels, data.lengths) == label) & (data.tokens >= 1000)]
            shares.append(np.bincount(words - 1000, minlength=3096) / len(words))
        assert np.abs(shares[0] - shares[1]).max() < 0.005
        own = shares[0][label * 48 : (label + 1) * 48]
        assert own.sum() == pytest.approx(embedded.SIGNAL, abs=0.01) and own.min() > 0


def test_nothing_is_held_out_and_evaluation_is_generated_beside_it(tmp_path, trace):
    workload = loaded(trace)
    assert (len(workload.train), len(workload.eval)) == (len(TRACE), embedded.EVAL_SAMPLES)
    assert set(workload.eval.lengths) <= set(TRACE)
    assert (workload.facts["train_source"], workload.facts["eval_source"]) == (
        str(trace),
        f"generated, lengths drawn from {trace}",
    )
    np.save(tmp_path / "eval.npy", [5, 7])
    workload = loaded(trace, eval_path=str(tmp_path / "eval.npy"))
    assert (len(workload.train), workload.eval.lengths.tolist()) == (len(TRACE), [5, 7])


def test_a_subset_follows_the_seed(trace):
    first, again, other = (loaded(trace, seed=seed, subset=64).train for seed in (1, 1, 2))
    assert len(first) == 64
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_lengths_that_are_cut_are_counted(trace, caplog):
    assert "workload.max_length" not in loaded(trace, max_length=59).facts["decisions"]
    assert not caplog.text
    workload = loaded(trace, max_length=40)
    n_cut = int((TRACE > 40).sum())
    assert workload.train.lengths.tolist() == np.minimum(TRACE, 40).tolist()
    seen = f"{n_cut} of 400 lengths of {trace} are greater, up to 59"
    assert f"workload.max_length: {seen}; they are cut to 40 tokens (--max-length)" in caplog.text
    assert workload.facts["decisions"]["workload.max_length"] == {"value": 40, "reason": f"{seen}; they are cut"}


def test_an_absurd_length_costs_no_more_than_what_is_kept_of_it(tmp_path):
    (tmp_path / "long.txt").write_text("2147483647\n3\n")
    assert loaded(tmp_path / "long.txt", max_length=9).train.lengths.tolist() == [9, 3]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("zero.csv", "length\n3\n0\n", "zero.csv: row 2: length 0"),
        ("negative.txt", "3\n-1\n", "negative.txt: row 2: length -1"),
        ("hole.jsonl", '{"length": 3}\n{"length": null}\n', "hole.jsonl: row 2: length missing"),
        ("two.csv", "id,tokens\n1,3\n", "no column 'length'; it has id, tokens"),
        ("empty.csv", "length\n", "the trace is empty"),
        ("trace.tsv", "3\n", "unknown trace format '.tsv'"),
        (None, "", "workload.data_path: .* no such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, name, content, message):
    path = tmp_path / (name or "absent.npy")
    if name is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        lengths.load(settings(path))


def test_an_evaluation_file_that_is_missing_is_named(tmp_path, trace):
    with pytest.raises(DataError, match=r"workload\.eval_path: .*absent\.npy: no such file"):
        lengths.load(settings(trace, eval_path=str(tmp_path / "absent.npy")))


def test_a_column_is_named(tmp_path):
    pl.DataFrame({"id": [1, 2], "tokens": [3, 4]}).write_parquet(tmp_path / "two.parquet")
    with pytest.raises(DataError, match="no column 'length'") as caught:
        lengths.load(settings(tmp_path / "two.parquet"))
    assert "--length-column" in caught.value.hint
    splits = lengths.load(settings(tmp_path / "two.parquet", length_column="tokens"))
    assert splits.train.lengths.tolist() == [3, 4]


@pytest.mark.parametrize("vocab_size", [embedded.VOCAB_SIZE - 1, embedded.VOCAB_SIZE])
def test_a_pretrained_model_must_know_the_generated_tokens(tmp_path, trace, vocab_size):
    config = transformers.DistilBertConfig(vocab_size=vocab_size, dim=8, hidden_dim=8, n_layers=1, n_heads=1)
    transformers.DistilBertModel(config).save_pretrained(tmp_path / "model")
    model = {"weights": "pretrained", "model": str(tmp_path / "model")}
    if vocab_size < embedded.VOCAB_SIZE:
        with pytest.raises(UsageError, match="knows 4095 tokens, the data have 4096"):
            loaded(trace, **model)
        return
    workload = loaded(trace, **model)
    batch = batch_of(workload, np.argsort(workload.train.lengths)[:4])
    assert workload.loss(workload.build_model(0), batch).isfinite()


def test_a_second_column_goes_with_the_samples_and_into_the_fingerprint(tmp_path: Path):
    second = np.arange(400) % 7
    pl.DataFrame({"length": TRACE, "patches": second}).write_csv(tmp_path / "two.csv")
    plain, both = (loaded(tmp_path / "two.csv", **more) for more in ({}, {"second_column": "patches"}))
    assert plain.train.second is None and both.train.second.tolist() == second.tolist()
    assert both.train.fingerprint != plain.train.fingerprint
    assert both.train.tokens.tolist() == plain.train.tokens.tolist()
    some = np.array([5, 3, 8])
    assert both.train.take(some).second.tolist() == [5, 3, 1]
    assert both.train.truncate(10).second.tolist() == second.tolist()
    subset = loaded(tmp_path / "two.csv", second_column="patches", subset=50).train
    assert len(subset.second) == 50
    assert make_micro_batch(both, both.train, some, 1).second == 9
    assert make_micro_batch(plain, plain.train, some, 1).second == 0


def test_a_language_model_on_a_trace_has_the_second_numbers_too(tmp_path: Path):
    pl.DataFrame({"length": TRACE + 1, "patches": TRACE}).write_csv(tmp_path / "two.csv")
    found = loaded(tmp_path / "two.csv", second_column="patches", name="causal_lm", size="tiny")
    assert found.train.second.tolist() == TRACE.tolist()
