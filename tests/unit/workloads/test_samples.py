"""From texts to samples: labelled, whole, or in blocks, few or many, in memory or on disk, the same."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import tokenizers

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads import cache, data, samples, token_shards
from dynbench.workloads.cache import contents_of
from dynbench.workloads.data import HELD_OUT_MOST, StoredTokens, TokenisedData
from dynbench.workloads.datasets.base import CorpusSplit, Splits, TextSplit
from dynbench.workloads.samples import Samples, corpus_samples, prepare_samples
from dynbench.workloads.tokenizer import TextTokenizer

NUMBERS = [" ".join(str((index * 7 + word) % 90) for word in range(index % 11 + 2)) for index in range(200)]


@pytest.fixture
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> TextTokenizer:
    """One token a number, itself; several shards of few texts."""
    monkeypatch.setattr(token_shards, "SHARD_CHARACTERS", 500)
    vocabulary = {str(number): number for number in range(90)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return TextTokenizer(backend, 0, 100, "numbers", "0123456789abcdef")


class Texts(list[str]):
    """They count how often they are read."""

    reads = 0

    def __iter__(self) -> Iterator[str]:
        self.reads += 1
        return super().__iter__()


def corpus(texts: Sequence[str], state: int = 0) -> CorpusSplit:
    return CorpusSplit(lambda: iter(texts), "somewhere/numbers.json", ("numbers", state))


@pytest.fixture
def made(tokenizer: TextTokenizer) -> Callable[..., tuple[TokenisedData, TokenisedData, dict[str, tuple]]]:
    """`made(texts, evaluation)` gives samples to train on and held-out ones, and what was decided, with the reasons."""

    def make(texts=NUMBERS, evaluation=None, *, state=0, seed=0, **settings):
        held_out = None if evaluation is None else corpus(evaluation)
        found = corpus_samples(corpus(texts, state), held_out, Workload(**settings), tokenizer, seed)
        return found.train, found.eval, {key: tuple(each.values()) for key, each in found.decisions.items()}

    return make


def rows(samples: TokenisedData) -> list[list[int]]:
    found, valid = samples.padded(np.arange(len(samples)), int(samples.lengths.max()), -1)
    return [row[real].tolist() for row, real in zip(found, valid, strict=True)]


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def test_every_text_is_trained_on_or_held_out(made):
    train, held_out, decisions = made()
    assert (len(train), len(held_out), decisions["workload.eval"][0]) == (180, 20, 20)
    assert sorted(rows(train) + rows(held_out)) == sorted(map(numbers, NUMBERS))
    few = made(NUMBERS[:9], state=1)
    assert (len(few[0]), few[1], few[2]["workload.eval"][0]) == (9, None, 0)


@pytest.mark.parametrize("change", [{"max_length": 5}, {"subset": 50}, {"blocks": True}])
def test_the_split_stays_whatever_is_trained_on(made, change):
    whole = made()[1]
    held_out = made(seed=3, **({"max_length": 7} | change))[1]
    joined = [number for row in rows(held_out) for number in row]
    assert len(joined) > 20
    if "blocks" in change:
        assert joined == [number for row in rows(whole) for number in row][: len(joined)]
    else:
        assert sorted(row[: change.get("max_length", 7)] for row in rows(whole)) == sorted(rows(held_out))


def test_blocks_are_the_joined_texts_and_the_last_tokens_are_left_out(made):
    whole, held_out, decisions = made(NUMBERS, NUMBERS[:20], max_length=16, blocks=True)
    joined = [number for text in NUMBERS for number in numbers(text)]
    assert rows(whole) == [joined[begin : begin + 16] for begin in range(0, len(joined) - 15, 16)]
    value, reason = decisions["workload.blocks.train"]
    assert value == len(whole) == len(joined) // 16 and f"the last {len(joined) % 16} tokens" in reason
    assert set(held_out.lengths.tolist()) == {16}
    some, _, decisions = made(NUMBERS, NUMBERS, max_length=16, blocks=True, subset=10)
    assert len(some) == 10 and [row for row in rows(whole) if row in rows(some)] == rows(some)
    assert f"drawn from {len(whole)} blocks" in decisions["workload.subset"][1]
    with pytest.raises(DataError, match=r"fill no block of workload.max_length 4000"):
        made(NUMBERS, NUMBERS, max_length=4000, blocks=True)


@pytest.mark.parametrize("settings", [{}, {"max_length": 6}, {"subset": 40}, {"max_length": 16, "blocks": True}])
def test_samples_that_stay_on_disk_are_those_in_memory(made, settings, monkeypatch):
    in_memory = made(**settings)[:2]
    monkeypatch.setattr(data, "MOST_IN_MEMORY", 0)
    for near, far in zip(in_memory, made(**settings)[:2], strict=True):
        assert isinstance(far.tokens, StoredTokens) and not isinstance(near.tokens, StoredTokens)
        assert rows(far) == rows(near)
        assert {**far.describe(), "fingerprint": 0} == {**near.describe(), "fingerprint": 0}
        ids = np.array([5, 0, 5, 3])
        assert rows(far.take(ids)) == rows(near.take(ids))
        weighed = far.weighed(far.lengths - 1)
        assert weighed.fingerprint != far.fingerprint
        assert weighed.take(ids).weight(np.arange(4)) == near.weighed(near.lengths - 1).weight(ids)
        with pytest.raises(ValueError, match="on disk"):
            far.truncate(1)


@pytest.mark.parametrize("most", [0, data.MOST_IN_MEMORY])
def test_what_is_cached_is_of_use_while_the_source_stays(made, caplog, monkeypatch, most):
    monkeypatch.setattr(data, "MOST_IN_MEMORY", most)
    first, again, touched = made()[0].fingerprint, Texts(NUMBERS), Texts(NUMBERS)
    assert made(again)[0].fingerprint == first and again.reads == 0
    assert made(touched, state=1)[0].fingerprint == first and touched.reads == 1
    assert "tokenising again" not in caplog.text
    changed = ["1 2 3", *NUMBERS[1:]]
    train, held_out, _ = made(changed, state=2)
    assert "texts differ); tokenising again" in caplog.text and train.fingerprint != first
    assert sorted(rows(train) + rows(held_out)) == sorted(map(numbers, changed))


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"state": ["numbers", 0]}', '{"state": ["numbers", 0], "contents": 1}']
)
def test_a_broken_count_is_made_again_with_a_warning(made, content, tmp_path, caplog):
    made(cache_dir=str(tmp_path))
    (path,) = tmp_path.glob("*.contents.json")
    whole = path.read_text()
    path.write_text(content)
    made(cache_dir=str(tmp_path))
    assert path.read_text() == whole and "cannot be read" in caplog.text


def test_a_cache_that_cannot_be_written_only_warns(made, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(data, "MOST_IN_MEMORY", 0)
    (tmp_path / "file").write_text("")
    train, held_out, _ = made(cache_dir=str(tmp_path / "file"))
    assert "name a writable folder in workload.cache_dir" in caplog.text
    assert sorted(rows(train) + rows(held_out)) == sorted(map(numbers, NUMBERS))


@pytest.mark.parametrize("fails", ["counted", "tokenised"])
def test_a_source_that_cannot_be_read_is_blamed_itself(made, tokenizer, caplog, fails):
    """While it is counted and while it is tokenised; not the cache."""
    if fails == "tokenised":
        made()
        tokenizer = replace(tokenizer, digest="f" * 16)

    def broken() -> Iterator[str]:
        yield from NUMBERS[:5]
        raise OSError(5, "Input/output error")

    with pytest.raises(DataError, match=r"workload.dataset: somewhere/numbers.json: Input/output error"):
        corpus_samples(replace(corpus(NUMBERS), read=broken), None, Workload(), tokenizer, 0)
    assert "cannot be cached" not in caplog.text


def test_what_takes_long_is_logged_with_its_rate(made, monkeypatch, caplog):
    monkeypatch.setattr(cache, "FIRST_S", 0.0)
    monkeypatch.setattr(cache, "EVERY_S", 0.0)
    with caplog.at_level(logging.INFO):
        made()
    for said in ("reading somewhere/numbers.json: .* so far", "tokenising .*M characters/s, ", "100%, 0 s left"):
        assert re.search(said, caplog.text)


def test_contents_tell_texts_apart(tmp_path):
    def of(*texts: str) -> cache.Contents:
        return contents_of(tmp_path, CorpusSplit(lambda: iter(texts), "here", ("here", *texts)))

    assert of("ab", "c") != of("a", "bc")
    assert of("é") == cache.Contents(1, 1, of("é").digest)


WORDS = ("good", "bad", "film", "very")


def split(n: int, labels=(0, 1), source: str = "train.tsv") -> TextSplit:
    """Texts that differ from each other while n is at most 4 ** 6."""
    texts = [" ".join(WORDS[i // 4**place % 4] for place in range(6)) for i in range(n)]
    return TextSplit(texts, np.resize(np.array(labels, dtype=np.int64), n), source)


@pytest.fixture
def settings(vocab_file):
    return Workload(dataset="tsv", data_path="train.tsv", tokenizer=str(vocab_file))


def prepared(
    train: TextSplit, settings: Workload, evaluation: TextSplit | None = None, seed: int = 0, **more
) -> Samples:
    return prepare_samples(Splits(train, evaluation), settings.model_copy(update=more), seed)


def test_texts_are_trained_on_where_no_disk_takes_them(settings, monkeypatch, tmp_path):
    """A full disk holds the cache and the temporary folder."""
    tokenise = samples.load_or_tokenise

    def on_a_full_disk(folder, *rest):
        if not folder.is_relative_to("/dev/shm"):
            raise OSError(28, "No space left on device", str(folder))
        return tokenise(folder, *rest)

    expected = prepared(split(40), settings, cache_dir=str(tmp_path / "other"))
    monkeypatch.setattr(samples, "load_or_tokenise", on_a_full_disk)
    found = prepared(split(40), settings, cache_dir=str(tmp_path / "full"))
    assert found.train.fingerprint == expected.train.fingerprint and rows(found.train) == rows(expected.train)


def test_held_out_samples_are_a_tenth_and_not_trained_on(settings):
    samples = prepared(split(400), settings)
    assert (len(samples.train), len(samples.eval), samples.decisions["workload.eval"]["value"]) == (360, 40, 40)
    assert not {*map(tuple, rows(samples.train))} & {*map(tuple, rows(samples.eval))}
    assert prepared(split(9), settings).eval is None
    both = prepared(split(400), settings, split(6, source="dev.tsv"))
    assert (len(both.train), len(both.eval), both.sources["eval_source"]) == (400, 6, "dev.tsv")
    first, second = (prepared(split(12_000), settings, seed=seed) for seed in (1, 2))
    assert first.eval.fingerprint == second.eval.fingerprint and len(first.eval) == HELD_OUT_MOST


def test_labelled_texts_keep_their_labels_from_the_cache_too(settings, caplog):
    first, again = (prepared(split(10), settings, max_length=5) for _ in range(2))
    other = prepared(split(10, labels=(1, 0)), settings, max_length=5)
    assert first.train.fingerprint == again.train.fingerprint != other.train.fingerprint
    cut = [[data.describe()[f"cut_{what}"] for what in ("samples", "tokens")] for data in (first.train, first.eval)]
    assert cut == [[9, 27], [1, 3]]  # 6 words, 2 special tokens
    assert (first.train.tokens[first.train.offsets[1:] - 1] == 3).all() and not caplog.records


def test_a_subset_follows_the_seed_and_keeps_the_order(settings, caplog):
    data = split(400), settings, split(4)
    whole = prepared(*data, seed=1)
    first, again, other = (prepared(*data, seed=seed, subset=50) for seed in (1, 1, 2))
    assert len(first.train) == 50
    assert first.train.fingerprint == again.train.fingerprint != other.train.fingerprint
    assert [row for row in rows(whole.train) if row in rows(first.train)] == rows(first.train)
    larger = prepared(*data, subset=401)
    assert len(larger.train) == larger.decisions["workload.subset"]["value"] == 400 and "401 of 400" in caplog.text


def test_a_text_without_any_token_is_named(settings, monkeypatch):
    def bare(self: TextTokenizer, max_length: int | None):
        return lambda texts: (([1] * len(text.split()), 0) for text in texts)

    monkeypatch.setattr(TextTokenizer, "encoder", bare)
    with pytest.raises(DataError, match=r"train.tsv: the text '' of sample 2 has no token"):
        prepared(TextSplit(["a", ""], np.array([0, 1]), "train.tsv"), settings)


def test_labels_that_training_never_shows_are_refused_and_gaps_count(settings):
    with pytest.raises(DataError, match=r"dev.tsv: label 2 of sample 3; expected 0 to 1, the labels of train.tsv"):
        prepared(split(40), settings, split(6, labels=(0, 1, 2), source="dev.tsv"))
    assert prepared(split(40, labels=(0, 4)), settings).num_labels == 5
    named = replace(split(40), classes=("bad", "good"))
    assert prepared(named, settings).sources["labels"] == {"bad": 0, "good": 1}


@pytest.mark.parametrize(("classes", "label"), [((), "0"), (("pos",), "pos")])
def test_one_label_only_warns_and_still_makes_two_classes(settings, caplog, classes, label):
    assert prepared(replace(split(40, labels=(0,)), classes=classes), settings).num_labels == 2
    assert f"has the label {label}: nothing to learn" in caplog.text
