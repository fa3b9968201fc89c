"""From texts without labels to samples: whole texts or blocks, few or many, in memory or on disk, the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
import tokenizers

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads import contents, data, token_shards
from dynbench.workloads.contents import Contents
from dynbench.workloads.corpus import corpus_of, corpus_samples
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.datasets.base import CorpusSplit, TextSplit
from dynbench.workloads.stored_tokens import StoredTokens
from dynbench.workloads.tokenizer import TextTokenizer

NUMBERS = [" ".join(str((index * 7 + word) % 90) for word in range(index % 11 + 2)) for index in range(200)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards of few texts."""
    monkeypatch.setattr(token_shards, "SHARD_CHARACTERS", 500)


@pytest.fixture
def tokenizer() -> TextTokenizer:
    """One token a number, itself."""
    vocabulary = {str(number): number for number in range(90)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return TextTokenizer(backend, 0, 100, "numbers", "0123456789abcdef")


class Source:
    """Texts that count how often they are read, and how far."""

    def __init__(self, texts: list[str], state: int = 0) -> None:
        self.texts, self.state, self.read = texts, state, []

    def split(self) -> CorpusSplit:
        def read() -> Iterator[str]:
            self.read.append(0)
            for text in self.texts:
                self.read[-1] += 1
                yield text

        return CorpusSplit(read, "somewhere/numbers.json", ("numbers", self.state))


def made(source: Source, tokenizer: TextTokenizer, evaluation: Source | None = None, seed: int = 0, **settings: object):
    held_out = None if evaluation is None else evaluation.split()
    found = corpus_samples(source.split(), held_out, Workload(**settings), tokenizer, seed)  # type: ignore[arg-type]
    return found.train, found.eval, {key: tuple(said.values()) for key, said in found.decisions.items()}


def rows(samples: TokenisedData | None) -> list[list[int]]:
    assert samples is not None
    width = int(samples.lengths.max())
    found, valid = samples.padded(np.arange(len(samples)), width, -1)
    return [row[keep].tolist() for row, keep in zip(found, valid, strict=True)]


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def test_every_text_is_trained_on_or_held_out(tokenizer):
    train, held, decisions = made(Source(NUMBERS), tokenizer)
    assert (len(train), len(held)) == (180, 20)
    assert sorted(rows(train) + rows(held)) == sorted(map(numbers, NUMBERS))
    assert decisions["workload.eval"][0] == 20


@pytest.mark.parametrize("change", [{"max_length": 5}, {"subset": 50}, {"blocks": True}])
def test_the_split_stays_whatever_is_trained_on(tokenizer, change):
    whole = {tuple(row) for row in rows(made(Source(NUMBERS), tokenizer)[1])}
    held = made(Source(NUMBERS), tokenizer, seed=3, **({"max_length": 7} | change))[1]
    joined = [number for row in rows(held) for number in row]
    assert len(joined) > 20
    if "blocks" not in change:
        cut = change.get("max_length", 7)
        assert {row[:cut] for row in whole} == {tuple(row) for row in rows(held)}
    else:
        texts = made(Source(NUMBERS), tokenizer)[1]
        assert joined == [number for row in rows(texts) for number in row][: len(joined)]


def test_texts_are_truncated_and_what_was_cut_is_counted(tokenizer):
    train, _, _ = made(Source(NUMBERS), tokenizer, Source(NUMBERS[:3]), max_length=5)
    assert rows(train) == [numbers(text)[:5] for text in NUMBERS]
    assert train.describe()["cut_tokens"] == sum(max(0, len(numbers(text)) - 5) for text in NUMBERS)


def test_blocks_are_the_joined_texts_and_the_last_tokens_are_left_out(tokenizer):
    train, held, decisions = made(Source(NUMBERS), tokenizer, Source(NUMBERS[:20]), max_length=16, blocks=True)
    joined = [number for text in NUMBERS for number in numbers(text)]
    assert rows(train) == [joined[begin : begin + 16] for begin in range(0, len(joined) - 15, 16)]
    assert len(joined) % 16
    value, reason = decisions["workload.blocks.train"]
    assert value == len(train) == len(joined) // 16
    assert f"the last {len(joined) % 16} tokens" in reason
    assert set(held.lengths.tolist()) == {16}


def test_too_few_tokens_for_a_block_are_refused(tokenizer):
    with pytest.raises(DataError, match=r"fill no block of workload.max_length 4000"):
        made(Source(NUMBERS), tokenizer, Source(NUMBERS), max_length=4000, blocks=True)


def test_a_subset_is_all_that_is_tokenised(tokenizer, monkeypatch):
    seen: list[str] = []
    encoder = TextTokenizer.encoder

    def watched(self: TextTokenizer, max_length: int | None):
        encode = encoder(self, max_length)
        return lambda texts: (seen.extend(texts), encode(texts))[1]

    monkeypatch.setattr(TextTokenizer, "encoder", watched)
    train, held, decisions = made(Source(NUMBERS), tokenizer, seed=4, subset=30)
    assert (len(train), len(held), len(seen)) == (30, 20, 50)
    assert decisions["workload.subset"] == (30, "drawn from 180 texts with seed 4")
    whole = made(Source(NUMBERS), tokenizer)[0]
    assert [row for row in rows(whole) if row in rows(train)] == rows(train)
    assert rows(made(Source(NUMBERS), tokenizer, seed=5, subset=30)[0]) != rows(train)


def test_a_subset_of_blocks_is_drawn_of_all_of_them(tokenizer):
    whole = made(Source(NUMBERS), tokenizer, max_length=16, blocks=True)[0]
    train, _, decisions = made(Source(NUMBERS), tokenizer, max_length=16, blocks=True, subset=10)
    assert len(train) == 10
    assert [row for row in rows(whole) if row in rows(train)] == rows(train)
    assert decisions["workload.subset"][1] == f"drawn from {len(whole)} blocks with seed 0"


def test_a_subset_larger_than_the_texts_takes_all_and_says_so(tokenizer, caplog):
    train, _, decisions = made(Source(NUMBERS), tokenizer, subset=181)
    assert (len(train), decisions["workload.subset"][0]) == (180, 180)
    assert "181 of 180 training texts" in caplog.text


def test_nothing_is_held_out_of_a_few(tokenizer):
    train, held, decisions = made(Source(NUMBERS[:9]), tokenizer)
    assert (len(train), held, decisions["workload.eval"][0]) == (9, None, 0)


@pytest.mark.parametrize("settings", [{}, {"max_length": 6}, {"subset": 40}, {"max_length": 16, "blocks": True}])
def test_samples_that_stay_on_disk_are_those_in_memory(tokenizer, settings, monkeypatch):
    in_memory = made(Source(NUMBERS), tokenizer, **settings)[:2]
    monkeypatch.setattr(data, "MOST_IN_MEMORY", 0)
    for near, far in zip(in_memory, made(Source(NUMBERS), tokenizer, **settings)[:2], strict=True):
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


def test_fingerprints_follow_the_tokens_on_disk(tokenizer, monkeypatch):
    monkeypatch.setattr(data, "MOST_IN_MEMORY", 0)
    made_of = [made(Source(texts, state), tokenizer)[0] for state, texts in enumerate((NUMBERS, NUMBERS, NUMBERS[1:]))]
    assert made_of[0].fingerprint == made_of[1].fingerprint != made_of[2].fingerprint


def test_the_second_time_reads_nothing(tokenizer):
    source = Source(NUMBERS)
    first = made(source, tokenizer)[0]
    source.read.clear()
    assert made(source, tokenizer)[0].fingerprint == first.fingerprint
    assert source.read == []


def test_a_source_that_changed_is_tokenised_again_and_one_that_was_touched_is_not(tokenizer, caplog):
    made(Source(NUMBERS), tokenizer)
    touched = Source(NUMBERS, state=1)
    made(touched, tokenizer)
    assert touched.read == [200]
    assert "tokenising again" not in caplog.text
    changed = ["1 2 3", *NUMBERS[1:]]
    train, held, _ = made(Source(changed, state=2), tokenizer)
    assert "texts differ); tokenising again" in caplog.text
    assert sorted(rows(train) + rows(held)) == sorted(map(numbers, changed))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"state": ["numbers", 0]}', '{"state": ["numbers", 0], "contents": 1}']
)
def test_a_broken_count_is_made_again_with_a_warning(tokenizer, content, tmp_path, caplog):
    made(Source(NUMBERS), tokenizer, cache_dir=str(tmp_path))
    (path,) = tmp_path.glob("*.contents.json")
    whole = path.read_text()
    path.write_text(content)
    made(Source(NUMBERS), tokenizer, cache_dir=str(tmp_path))
    assert path.read_text() == whole
    assert "cannot be read" in caplog.text


def test_a_cache_that_cannot_be_written_only_warns(tokenizer, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(data, "MOST_IN_MEMORY", 0)
    (tmp_path / "file").write_text("")
    train, held, _ = made(Source(NUMBERS), tokenizer, cache_dir=str(tmp_path / "file"))
    assert "name a writable folder in workload.cache_dir" in caplog.text
    assert sorted(rows(train) + rows(held)) == sorted(map(numbers, NUMBERS))


def test_folders_tell_length_subset_blocks_and_tokenizer(tokenizer, tmp_path):
    for settings in ({}, {"max_length": 9}, {"subset": 20}, {"blocks": True, "max_length": 9}):
        made(Source(NUMBERS), tokenizer, cache_dir=str(tmp_path), **settings)
    found = sorted(path.name.partition("-")[2].partition("-")[2] for path in tmp_path.iterdir() if path.is_dir())
    kept = ("eval-256", "eval-9", "eval-blocks", "train-256", "train-9", "train-blocks", "train-subset-20-0-256")
    assert found == [f"{name}-01234567" for name in kept]


def test_large_vocabularies_have_larger_ids(tokenizer, tmp_path):
    large = TextTokenizer(tokenizer.backend, 0, 2**16 + 1, "numbers", "f" * 16)
    for each in (tokenizer, large):
        made(Source(NUMBERS), each, cache_dir=str(tmp_path))
    types = {path.parent.name[-8:]: np.load(path).dtype for path in tmp_path.glob("*/00000.ids.npy")}
    assert types == {"01234567": np.dtype(np.uint16), "ffffffff": np.dtype(np.uint32)}


def test_texts_in_memory_are_a_corpus_too(tokenizer):
    texts = TextSplit(NUMBERS, np.zeros(len(NUMBERS), dtype=np.int64), "memory")
    other = TextSplit(NUMBERS[1:], np.zeros(len(NUMBERS) - 1, dtype=np.int64), "memory")
    assert list(corpus_of(texts).read()) == NUMBERS
    assert corpus_of(texts).state != corpus_of(other).state


def test_what_takes_long_is_told_with_its_rate(tokenizer, monkeypatch, caplog):
    monkeypatch.setattr("dynbench.workloads.pace.FIRST_S", 0.0)
    monkeypatch.setattr("dynbench.workloads.pace.EVERY_S", 0.0)
    with caplog.at_level(logging.INFO):
        made(Source(NUMBERS), tokenizer)
    lines = [record.getMessage() for record in caplog.records if record.name == "dynbench.workloads.pace"]
    assert any("reading somewhere/numbers.json: " in line and "so far" in line for line in lines)
    assert any("tokenising somewhere/numbers.json: " in line and "M characters/s, " in line for line in lines)
    assert any("100%, 0 s left" in line for line in lines)


def test_contents_tell_texts_apart() -> None:
    def of(*texts: str) -> Contents:
        return contents._read_through(CorpusSplit(lambda: iter(texts), "here", ("here",)))

    assert of("ab", "c") != of("a", "bc")
    assert of("é") == Contents(1, 1, of("é").digest)
