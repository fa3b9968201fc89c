"""Tokenizers over bytes: every text comes back, ends are put behind what is not cut, what makes nothing is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from dynbench.config.schema import Config, Workload
from dynbench.errors import DataError
from dynbench.workloads.byte_level import BYTE_BEGIN, BYTE_END, END
from dynbench.workloads.inputs import check_inputs
from dynbench.workloads.tokenizer import TextTokenizer, load_tokenizer, padding_of

TEXTS = ["The end of 1 text.\n", "low lower lowest", "", "ein Löffel 漢字 🙂"]
unicode_texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


def bytes_of(ends: bool = True) -> TextTokenizer:
    return load_tokenizer(Workload(tokenizer="bytes"), ends=ends)


@given(unicode_texts)
def test_a_byte_is_its_own_token(text: str) -> None:
    [(ids, cut)] = bytes_of().encode([text], 1000)
    assert (ids, cut) == ([BYTE_BEGIN, *text.encode(), BYTE_END], 0)


def test_bytes_are_the_default_of_language_models_of_their_own_size() -> None:
    assert load_tokenizer(Workload(name="causal_lm")).vocab_size == 259
    assert Workload(name="causal_lm", weights="pretrained", model="m").tokenizer_name == "m"
    assert Workload(name="causal_lm", size="model", model="m").tokenizer_name == "m"
    assert Workload().tokenizer_name == "distilbert-base-uncased"


@pytest.mark.parametrize(("most", "ids", "cut"), [(5, [256, 97, 98, 257], 0), (4, [256, 97, 98, 257], 0),
                                                  (3, [256, 97, 98], 1), (2, [256, 97], 1)])  # fmt: skip
def test_a_cut_text_has_no_end(most: int, ids: list[int], cut: int) -> None:
    assert list(bytes_of().encode(["ab"], most)) == [(ids, cut)]


def test_ends_are_part_of_the_digest() -> None:
    assert bytes_of().digest != bytes_of(ends=False).digest
    assert list(bytes_of(ends=False).encode(["ab"], 9)) == [([256, 97, 98], 0)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small vocabulary of byte pairs, trained on the spot, as the library saves it."""
    folder = tmp_path_factory.mktemp("bpe")
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(TEXTS * 4, vocab_size=300, min_frequency=2, special_tokens=[END])
    made.save_model(str(folder), "small")
    return folder


def test_merges_are_found_beside_the_vocabulary(trained: Path, tmp_path: Path) -> None:
    reference = tokenizers.ByteLevelBPETokenizer(str(trained / "small-vocab.json"), str(trained / "small-merges.txt"))
    for place in (trained, tmp_path):
        if place is tmp_path:  # as GPT-2's own repository calls them
            (tmp_path / "vocab.json").write_bytes((trained / "small-vocab.json").read_bytes())
            (tmp_path / "merges.txt").write_bytes((trained / "small-merges.txt").read_bytes())
        found = load_tokenizer(Workload(tokenizer=str(next(place.glob("*vocab.json")))), ends=True)
        assert [ids for ids, _ in found.encode(TEXTS, 99)] == [[*reference.encode(t).ids, found.end_id] for t in TEXTS]
        assert [found.backend.decode(ids[:-1]) for ids, _ in found.encode(TEXTS, 99)] == TEXTS
        assert padding_of(found) == found.end_id == reference.token_to_id(END)


def test_a_vocabulary_without_merges_is_refused(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "gpt2-vocab.json").write_bytes((trained / "small-vocab.json").read_bytes())
    with pytest.raises(DataError, match=r"no merges beside it, neither gpt2-merges\.txt nor merges\.txt"):
        load_tokenizer(Workload(tokenizer=str(tmp_path / "gpt2-vocab.json")))
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"sentence": "a", "label": 0}\n', encoding="utf-8")
    settings = Workload(dataset="jsonl", data_path=str(texts), tokenizer=str(tmp_path / "gpt2-vocab.json"))
    with pytest.raises(DataError, match="no merges beside it"):
        check_inputs(Config(workload=settings))


@pytest.mark.parametrize(
    ("vocabulary", "said"),
    [
        ({"漢": 0}, "does not come back from its tokens"),
        ([1], "no JSON object"),
        ({"a": "b"}, "does not come back from its tokens"),
    ],
)
def test_a_vocabulary_that_makes_nothing_of_a_text_is_refused(tmp_path: Path, vocabulary: object, said: str) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    with pytest.raises(DataError, match=said):
        load_tokenizer(Workload(tokenizer=str(tmp_path / "vocab.json")))


@pytest.mark.parametrize("merges", ["", "#version: 0.2\n"])
def test_a_file_of_merges_without_any_is_refused_where_pieces_wait_for_them(
    trained: Path, tmp_path: Path, merges: str
) -> None:
    """As a download that broke off leaves it: every text would come back, byte by byte."""
    (tmp_path / "vocab.json").write_bytes((trained / "small-vocab.json").read_bytes())
    (tmp_path / "merges.txt").write_text(merges, encoding="utf-8")
    with pytest.raises(DataError, match=r"no merges, so that none of the \d+ pieces of vocab\.json is ever used"):
        load_tokenizer(Workload(tokenizer=str(tmp_path / "vocab.json")))
    letters = {piece: token for piece, token in bytes_of().backend.get_vocab().items() if len(piece) == 1}
    (tmp_path / "vocab.json").write_text(json.dumps(letters), encoding="utf-8")
    [(ids, _)] = load_tokenizer(Workload(tokenizer=str(tmp_path / "vocab.json"))).encode(["low"], 9)
    assert ids == [*b"low"]
