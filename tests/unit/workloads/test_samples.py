from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.datasets.base import Splits, TextSplit
from dynbench.workloads.held_out import HELD_OUT_MOST
from dynbench.workloads.samples import prepare_samples
from dynbench.workloads.tokenizer import TextTokenizer

WORDS = ("good", "bad", "film", "very")


def split(n: int, labels=(0, 1), source: str = "train.tsv") -> TextSplit:
    """Texts that differ from each other while n is at most 4 ** 6."""
    texts = [" ".join(WORDS[i // 4**place % 4] for place in range(6)) for i in range(n)]
    return TextSplit(texts, np.resize(np.array(labels, dtype=np.int64), n), source)


@pytest.fixture
def settings(vocab_file):
    return Workload(dataset="tsv", data_path="train.tsv", tokenizer=str(vocab_file))


def rows(data) -> set[bytes]:
    return {data.tokens[a:b].tobytes() for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)}


def test_held_out_samples_are_a_tenth_and_not_trained_on(settings):
    samples = prepare_samples(Splits(split(400)), settings, seed=0)
    assert (len(samples.train), len(samples.eval)) == (360, 40)
    assert not rows(samples.train) & rows(samples.eval)
    assert samples.decisions["workload.eval"]["value"] == 40


def test_of_ten_rows_what_is_held_out_and_cut_is_counted(settings):
    samples = prepare_samples(Splits(split(10)), settings.model_copy(update={"max_length": 5}), seed=0)
    train, evaluation = samples.train.describe(), samples.eval.describe()
    assert (train["samples"], train["cut_samples"], train["cut_tokens"]) == (9, 9, 27)  # 6 words, 2 special tokens
    assert (evaluation["samples"], evaluation["cut_samples"], evaluation["cut_tokens"]) == (1, 1, 3)


def test_the_classes_of_words_are_among_the_facts(settings):
    texts = split(40)
    named = TextSplit(texts.texts, texts.labels, texts.source, ("bad", "good"))
    assert prepare_samples(Splits(named), settings, seed=0).facts["labels"] == {"bad": 0, "good": 1}
    assert prepare_samples(Splits(texts), settings, seed=0).facts["labels"] == {}


def test_a_text_without_any_token_is_named(settings, monkeypatch):
    def bare(tokenizer, texts, max_length):
        return (([1] * len(text.split()), 0) for text in texts)

    monkeypatch.setattr(TextTokenizer, "encode", bare)
    with pytest.raises(DataError, match=r"train.tsv: the text '' of sample 2 has no token"):
        prepare_samples(Splits(TextSplit(["a", ""], np.array([0, 1]), "train.tsv")), settings, seed=0)


def test_held_out_samples_are_the_same_for_every_seed_and_bounded(settings):
    first, second = (prepare_samples(Splits(split(12_000)), settings, seed=seed) for seed in (1, 2))
    assert first.eval.fingerprint == second.eval.fingerprint
    assert len(first.eval) == HELD_OUT_MOST


def test_nothing_is_held_out_of_a_few_samples_or_with_an_evaluation_file(settings):
    assert prepare_samples(Splits(split(9)), settings, seed=0).eval is None
    samples = prepare_samples(Splits(split(400), split(6, source="dev.tsv")), settings, seed=0)
    assert (len(samples.train), len(samples.eval)) == (400, 6)
    assert samples.facts["eval_source"] == "dev.tsv"


def test_a_subset_follows_the_seed_and_keeps_the_order(settings):
    data = Splits(split(400), split(4))
    small = settings.model_copy(update={"subset": 50})
    whole = prepare_samples(data, settings, seed=1)
    first, again, other = (prepare_samples(data, small, seed=seed) for seed in (1, 1, 2))
    assert len(first.train) == 50
    assert first.train.fingerprint == again.train.fingerprint != other.train.fingerprint
    ordered = [row for row in _list(whole.train) if row in rows(first.train)]
    assert ordered == _list(first.train)


def _list(data) -> list[bytes]:
    return [data.tokens[a:b].tobytes() for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]


def test_a_subset_larger_than_the_data_takes_all_and_says_so(settings, caplog):
    samples = prepare_samples(Splits(split(20), split(4)), settings.model_copy(update={"subset": 21}), seed=0)
    assert len(samples.train) == 20
    assert "21 of 20" in caplog.text
    assert samples.decisions["workload.subset"]["value"] == 20


def test_max_length_truncates(settings):
    samples = prepare_samples(Splits(split(40)), settings.model_copy(update={"max_length": 5}), seed=0)
    assert samples.train.lengths.tolist() == [5] * 36
    assert (samples.train.tokens[samples.train.offsets[1:] - 1] == 3).all()


def test_labels_that_training_never_shows_are_refused(settings):
    with pytest.raises(DataError, match=r"dev.tsv: label 2 of sample 3; expected 0 to 1, the labels of train.tsv"):
        prepare_samples(Splits(split(40), split(6, labels=(0, 1, 2), source="dev.tsv")), settings, seed=0)


def test_one_label_only_warns_and_still_makes_two_classes(settings, caplog):
    assert prepare_samples(Splits(split(40, labels=(0,))), settings, seed=0).num_labels == 2
    assert "nothing to learn" in caplog.text


def test_the_one_label_is_named_as_the_file_writes_it(settings, caplog):
    prepare_samples(Splits(replace(split(40, labels=(0,)), classes=("pos",))), settings, seed=0)
    assert "has the label pos: nothing to learn" in caplog.text


def test_gaps_between_labels_count_as_classes(settings):
    assert prepare_samples(Splits(split(40, labels=(0, 4))), settings, seed=0).num_labels == 5
