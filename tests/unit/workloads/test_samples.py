"""From texts to samples: labelled, whole, or in blocks, few or many, in memory or on disk, the same; taken, padded."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.workloads.conftest import SPECIAL

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads import cache, data, samples, token_shards
from dynbench.workloads.cache import contents_of
from dynbench.workloads.data import HELD_OUT_MOST, StoredTokens, TokenisedData
from dynbench.workloads.datasets.base import CorpusSplit, Splits, TextSplit
from dynbench.workloads.samples import Samples, prepare_samples
from dynbench.workloads.tokenizer import TextTokenizer

SOURCE, DEV = "numbers.json", "dev.json"
NUMBERS = [" ".join(str((index * 7 + word) % 90) for word in range(index % 11 + 2)) for index in range(200)]


def labelled(texts: Sequence[str] = NUMBERS, labels: Sequence[int] = (0, 1), source: str = SOURCE) -> TextSplit:
    return TextSplit(texts, np.resize(np.array(labels, dtype=np.int64), len(texts)), source)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Samples]:
    """`made(texts, evaluation)` gives samples of texts, which are a stream unless labelled; there are several shards.

    `made.reads` counts how often a stream is read.
    """
    monkeypatch.setattr(token_shards, "SHARD_CHARACTERS", 500)
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL, *map(str, range(90))]))

    def make(texts=NUMBERS, evaluation=None, *, state=0, seed=0, **settings):
        def split(texts: Sequence[str] | TextSplit | None, source: str) -> TextSplit | CorpusSplit | None:
            def read() -> Iterator[str]:
                make.reads += 1
                return iter(texts)

            return texts if isinstance(texts, TextSplit | None) else CorpusSplit(read, source, (source, state))

        given = Workload(dataset="tsv", data_path=SOURCE, tokenizer=str(vocabulary), **settings)
        splits = Splits(split(texts, SOURCE), split(evaluation, DEV))
        return prepare_samples(splits, given, seed, classes=isinstance(texts, TextSplit))

    make.reads = 0
    return make


def rows(samples: TokenisedData) -> list[list[int]]:
    found, valid = samples.padded(np.arange(len(samples)), int(samples.lengths.max()), -1)
    return [row[real].tolist() for row, real in zip(found, valid, strict=True)]


def numbers(text: str) -> list[int]:
    """The tokens of a text, between those that begin and end it."""
    return [2, *(int(word) + len(SPECIAL) for word in text.split()), 3]


@pytest.mark.parametrize("kind", [labelled, list])
def test_a_tenth_is_held_out_and_every_other_text_is_trained_on(made, kind):
    found = made(kind(NUMBERS))
    assert (len(found.train), len(found.eval), found.decisions["workload.eval"]["value"]) == (180, 20, 20)
    assert sorted(rows(found.train) + rows(found.eval)) == sorted(map(numbers, NUMBERS))
    few = made(kind(NUMBERS[:9]), state=1)
    assert (len(few.train), few.eval, few.decisions["workload.eval"]["value"]) == (9, None, 0)
    both = made(kind(NUMBERS), kind(NUMBERS[:6]))
    assert (rows(both.train), rows(both.eval)) == ([*map(numbers, NUMBERS)], [*map(numbers, NUMBERS[:6])])


@pytest.mark.parametrize("kind", [labelled, list])
def test_a_subset_follows_the_seed_and_keeps_the_order(made, kind, caplog):
    texts = kind(NUMBERS), kind(NUMBERS[:4])
    first, again, other = (made(*texts, seed=seed, subset=50).train for seed in (1, 1, 2))
    assert first.fingerprint == again.fingerprint != other.fingerprint and len(first) == 50
    assert [row for row in map(numbers, NUMBERS) if row in rows(first)] == rows(first)
    larger = made(*texts, subset=201)
    assert len(larger.train) == larger.decisions["workload.subset"]["value"] == 200 and "201 of 200" in caplog.text


@pytest.mark.parametrize("change", [{"max_length": 5}, {"subset": 50}, {"blocks": True}])
def test_the_split_stays_whatever_is_trained_on(made, change):
    whole, settings = rows(made().eval), {"max_length": 7} | change
    held_out = rows(made(seed=3, **settings).eval)
    if "blocks" in change:
        joined = [*chain(*held_out)]
        assert len(joined) > 20 and joined == [*chain(*whole)][: len(joined)]
    else:
        most = settings["max_length"]
        assert sorted(held_out) == sorted(row if len(row) <= most else [*row[: most - 1], 3] for row in whole)


@pytest.mark.slow
def test_so_many_at_most_are_held_out_the_same_for_every_seed(made):
    first, second = (made(labelled(NUMBERS * 60), seed=seed).eval for seed in (1, 2))
    assert first.fingerprint == second.fingerprint and len(first) == HELD_OUT_MOST


def test_blocks_are_the_joined_texts_and_the_last_tokens_are_left_out(made):
    whole = made(NUMBERS, NUMBERS[:20], max_length=16, blocks=True)
    joined, blocks = [*chain(*map(numbers, NUMBERS))], rows(whole.train)
    assert blocks == [joined[begin : begin + 16] for begin in range(0, len(joined) - 15, 16)]
    value, reason = whole.decisions["workload.blocks.train"].values()
    assert value == len(blocks) and f"the last {len(joined) % 16} tokens" in reason
    assert set(whole.eval.lengths.tolist()) == {16}
    some = rows(made(NUMBERS, NUMBERS, max_length=16, blocks=True, subset=10).train)
    assert len(some) == 10 and [row for row in blocks if row in some] == some
    with pytest.raises(DataError, match=r"fill no block of workload.max_length 4000"):
        made(NUMBERS, NUMBERS, max_length=4000, blocks=True)


@pytest.mark.parametrize("settings", [{}, {"max_length": 6}, {"subset": 40}, {"max_length": 16, "blocks": True}])
def test_samples_that_stay_on_disk_are_those_in_memory(made, settings, monkeypatch):
    in_memory = made(**settings)
    monkeypatch.setattr(data, "MOST_IN_MEMORY", 0)
    on_disk = made(**settings)
    for near, far in ((in_memory.train, on_disk.train), (in_memory.eval, on_disk.eval)):
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
    first, reads = made().train.fingerprint, made.reads
    assert (made().train.fingerprint, made.reads) == (first, reads)
    assert (made(state=1).train.fingerprint, made.reads) == (first, reads + 1)
    assert "tokenising again" not in caplog.text
    changed = ["1 2 3", *NUMBERS[1:]]
    found = made(changed, state=2)
    assert "texts differ); tokenising again" in caplog.text and found.train.fingerprint != first
    assert sorted(rows(found.train) + rows(found.eval)) == sorted(map(numbers, changed))


@pytest.mark.parametrize("content", ["{", "[]", '{"state": ["%s", 0]}', '{"state": ["%s", 0], "contents": 1}'])
def test_a_broken_count_is_made_again_with_a_warning(made, content, tmp_path, caplog):
    made()
    (path,) = tmp_path.glob("*/*.contents.json")
    whole = path.read_text()
    path.write_text(content.replace("%s", SOURCE))
    made()
    assert path.read_text() == whole and "cannot be read" in caplog.text


def test_a_cache_that_cannot_be_written_only_warns(made, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(data, "MOST_IN_MEMORY", 0)
    (tmp_path / "file").write_text("")
    found = made(cache_dir=str(tmp_path / "file"))
    assert "name a writable folder in workload.cache_dir" in caplog.text
    assert sorted(rows(found.train) + rows(found.eval)) == sorted(map(numbers, NUMBERS))


def test_texts_are_trained_on_where_no_disk_takes_them(made, monkeypatch, tmp_path):
    """A full disk holds the cache and the temporary folder."""
    tokenise = samples.load_or_tokenise

    def on_a_full_disk(folder, *rest):
        if not folder.is_relative_to("/dev/shm"):
            raise OSError(28, "No space left on device", str(folder))
        return tokenise(folder, *rest)

    monkeypatch.setattr(samples, "load_or_tokenise", on_a_full_disk)
    found = made(labelled(), labelled(), cache_dir=str(tmp_path / "full"))
    assert rows(found.train) == rows(found.eval) == [*map(numbers, NUMBERS)]


@pytest.mark.parametrize("fails", ["counted", "tokenised"])
def test_a_source_that_cannot_be_read_is_blamed_itself(made, caplog, fails):
    """While it is counted and while it is tokenised; not the cache."""
    if fails == "tokenised":
        made()

    def broken() -> Iterator[str]:
        yield from NUMBERS[:5]
        raise OSError(5, "Input/output error")

    with pytest.raises(DataError, match=r"workload.dataset: numbers.json: Input/output error"):
        made(broken(), max_length=9)
    assert "cannot be cached" not in caplog.text


def test_what_takes_long_is_logged_with_its_rate(made, monkeypatch, caplog):
    monkeypatch.setattr(cache, "FIRST_S", 0.0)
    monkeypatch.setattr(cache, "EVERY_S", 0.0)
    with caplog.at_level(logging.INFO):
        made()
    for said in ("reading numbers.json: .* so far", "tokenising .*M characters/s, ", "100%, 0 s left"):
        assert re.search(said, caplog.text)


def test_a_text_without_any_token_is_named(made, monkeypatch):
    monkeypatch.setattr(TextTokenizer, "encoder", lambda *_: lambda texts: ((text.split(), 0) for text in texts))
    with pytest.raises(DataError, match=r"numbers.json: the text '' of sample 2 has no token"):
        made(["1 2", ""])


def test_contents_tell_texts_apart(tmp_path):
    def of(*texts: str) -> cache.Contents:
        return contents_of(tmp_path, CorpusSplit(lambda: iter(texts), "here", ("here", *texts)))

    assert of("ab", "c") != of("a", "bc")
    assert of("é") == cache.Contents(1, 1, of("é").digest)


def test_labelled_texts_keep_their_labels_from_the_cache_too(made, caplog):
    first, again = (made(labelled(), max_length=5) for _ in range(2))
    other = made(labelled(labels=(1, 0)), max_length=5)
    assert first.train.fingerprint == again.train.fingerprint != other.train.fingerprint
    cut = [sum(each.describe()[f"cut_{what}"] for each in (first.train, first.eval)) for what in ("samples", "tokens")]
    removed = [max(0, len(numbers(text)) - 5) for text in NUMBERS]
    assert cut == [np.count_nonzero(removed), sum(removed)] and not caplog.records


def test_labels_that_training_never_shows_are_refused_and_gaps_count(made):
    with pytest.raises(DataError, match=r"dev.json: label 2 of sample 3; expected 0 to 1, the labels of numbers.json"):
        made(labelled(), labelled(labels=(0, 1, 2), source=DEV))
    found = made(replace(labelled(), classes=("bad", "good")), labelled(source=DEV))
    assert (found.sources["labels"], found.sources["eval_source"]) == ({"bad": 0, "good": 1}, DEV)
    assert made(labelled(labels=(0, 4))).num_labels == 5


@pytest.mark.parametrize(("classes", "label"), [((), "0"), (("pos",), "pos")])
def test_one_label_only_warns_and_still_makes_two_classes(made, caplog, classes, label):
    assert made(replace(labelled(labels=(0,)), classes=classes)).num_labels == 2
    assert f"has the label {label}: nothing to learn" in caplog.text


samples_of = st.lists(st.lists(st.integers(1, 999), min_size=1, max_size=9), min_size=1, max_size=12)


def data_of(samples: list[list[int]]) -> TokenisedData:
    return TokenisedData.from_samples(samples, np.arange(len(samples), dtype=np.int64))


@pytest.mark.slow
@given(samples_of, st.lists(st.integers(2, 10), max_size=3), st.integers(0, 5), st.data())
def test_cut_taken_and_padded_samples_are_as_lists_are(samples, limits, extra, draw):
    """Of a cut sample the last token stays the last."""
    data, whole = data_of(samples), [*map(len, samples)]
    for limit in limits:
        data = data.truncate(limit)
        samples = [s if len(s) <= limit else [*s[: limit - 1], s[-1]] for s in samples]
    assert data.fingerprint == data_of(samples).fingerprint
    ids = np.array(draw.draw(st.lists(st.integers(0, len(samples) - 1), max_size=8)), dtype=np.int64)
    taken, wanted = data.take(ids), [samples[i] for i in ids]
    assert taken.fingerprint == TokenisedData.from_samples(wanted, ids).fingerprint
    if wanted:
        removed, described = [whole[i] - len(samples[i]) for i in ids], taken.describe()
        assert [described[f"cut_{what}"] for what in ("samples", "tokens")] == [np.count_nonzero(removed), sum(removed)]
        assert described["classes"] == len({*ids.tolist()})
        width = max(map(len, wanted)) + extra
        rows, valid = data.padded(ids, width, pad_id=0)
        assert rows.tolist() == [sample + [0] * (width - len(sample)) for sample in wanted]
        assert np.array_equal(valid, rows > 0)


def test_fingerprint_changes_with_a_token_a_boundary_and_a_label():
    found = [data_of(samples) for samples in ([[1, 2], [3]], [[1, 9], [3]], [[1], [2, 3]])]
    found.append(TokenisedData.from_samples([[1, 2], [3]], np.array([0, 0])))
    assert len({each.fingerprint for each in found}) == 4


def test_weights_go_with_their_samples_and_into_the_fingerprint():
    plain = data_of([[1, 2], [3], [4, 5, 6]])
    weighed, ones = plain.weighed([2, 0, 0.5]), plain.weighed([1, 1, 1])
    assert (plain.weight(np.arange(3)), weighed.weight(np.arange(3)), weighed.weight(np.array([1]))) == (3, 2.5, 0)
    assert weighed.take(np.array([2, 1, 2])).weights.tolist() == [0.5, 0, 0.5]
    assert (ones.weights, ones.fingerprint) == (None, plain.fingerprint) != (None, weighed.fingerprint)


WEIGHTS = ([1, 2], [1, -1, 2], [1, float("nan"), 2], [[1, 2, 3]])


def test_what_cannot_be_is_refused():
    labels = np.zeros(3, dtype=np.int64)
    data = TokenisedData.from_samples([[1, 2, 3], [3], [3]], labels, weights=[3, 1, 1])
    assert data.truncate(3) is data
    for said, make, *values in (
        ("offsets", TokenisedData.from_arrays, np.ones(3, np.int32), np.array([0, 2]), labels[:1]),
        ("no tokens", TokenisedData.from_samples, [[1], [], [1]], labels),
        ("could not convert", data.weighed, ["a", "b", "c"]),
        *(("weights are one finite number", data.weighed, weights) for weights in WEIGHTS),
        ("cut first, then weigh", data.truncate, 2),
        ("a sample of 3 tokens cannot be padded to 2", data.padded, np.array([0]), 2, 0),
    ):
        with pytest.raises(ValueError, match=said):
            make(*values)
