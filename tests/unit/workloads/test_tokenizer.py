"""Tokenizers of vocabularies, folders and bytes: their ids, what is cut, ends and padding, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from dynbench.config.schema import Workload
from dynbench.errors import DataError, UsageError
from dynbench.workloads.tokenizer import BYTE_BEGIN, BYTE_END, END, TextTokenizer, load_tokenizer, padding_of

TEXTS = ["The GOOD film.", "unlikely xyzzy", "", "very very very very"]
IDS = [[2, 13, 5, 7, 12, 3], [2, 9, 10, 11, 1, 3], [2, 3], [2, 8, 8, 8, 8, 3]]
UNICODE = ["The end of 1 text.\n", "low lower lowest", "", "ein Löffel 漢字 🙂"]


def load(name: object, ends: bool = False) -> TextTokenizer:
    return load_tokenizer(Workload(tokenizer=str(name)), ends=ends)


def encoded(tokenizer: TextTokenizer, texts: list[str], max_length: int | None = None) -> list[tuple[list[int], int]]:
    return list(tokenizer.encoder(max_length)(texts))


@pytest.mark.parametrize("max_length", [2, 3, 4, 5, 64])
def test_wordpiece_is_cut_before_its_closing_token_and_what_is_cut_is_counted(vocab_file, max_length):
    tokenizer = load(vocab_file)
    expected = [([*ids[:-1][: max_length - 1], 3], max(0, len(ids) - max_length)) for ids in IDS]
    assert encoded(tokenizer, TEXTS, max_length) == expected
    assert encoded(tokenizer, TEXTS, 64) == [(ids, 0) for ids in IDS], "earlier use changes nothing"
    assert (tokenizer.pad_id, tokenizer.vocab_size) == (0, 15)


def test_local_folder_hub_cache_and_vocabulary_agree(model_folder, vocab_file, cache_on_hub):
    cache_on_hub("someone/tiny", model_folder)
    assert all(encoded(load(name), TEXTS) == [(ids, 0) for ids in IDS] for name in (model_folder, "someone/tiny"))
    assert load_tokenizer(Workload(model=str(model_folder))).source == str(model_folder), "without a name the model's"


def test_the_digest_follows_the_vocabulary_not_the_path(vocab_file, tmp_path):
    copy, other = tmp_path / "copy.txt", tmp_path / "other.txt"
    shutil.copy(vocab_file, copy)
    other.write_text(vocab_file.read_text() + "new\n")
    digests = [load(path).digest for path in (vocab_file, copy, other)]
    assert digests[0] == digests[1] != digests[2]


def test_words_are_split_as_bert_splits_them(tmp_path):
    """Punctuation and ideographs stand alone, accents go, and a word that its pieces do not make up is unknown."""
    pieces = "[PAD] [UNK] [CLS] [SEP] it s ' a film - making . naive cafe $ 9 99 un ##aff ##able ! 电 影"
    numbers = {piece: number for number, piece in enumerate(pieces.split())}
    (tmp_path / "vocab.txt").write_text("\n".join(numbers), encoding="utf-8")
    sentences = {
        "It's a film-making.": "it ' s a film - making .",
        "a\tNaïve  CAFÉ\n": "a naive cafe",
        "$9.99!": "$ 9 . 99 !",
        "unaffable 电影": "un ##aff ##able 电 影",
        "a unfilm": "a [UNK]",
    }
    expected = [([2, *(numbers[piece] for piece in split.split()), 3], 0) for split in sentences.values()]
    assert encoded(load(tmp_path / "vocab.txt"), list(sentences)) == expected


@pytest.mark.parametrize(("special", "pad_id"), [({}, None), ({"eos_token": "[SEP]"}, 3)])
def test_without_a_padding_token_the_end_pads_or_nothing_does(model_folder, tmp_path, special, pad_id):
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(model_folder / name, tmp_path)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = load(tmp_path)
    assert found.pad_id == pad_id
    if pad_id is None:
        with pytest.raises(UsageError, match="has neither a padding token nor an end token"):
            padding_of(found)


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40), st.integers(2, 60))
def test_a_byte_is_its_own_token_and_a_cut_text_has_no_end(text, most):
    ending, endless = load("bytes", ends=True), load("bytes")
    ids = [BYTE_BEGIN, *text.encode()]
    assert encoded(endless, [text], most) == [(ids[:most], max(0, len(ids) - most))]
    whole = ([*ids, BYTE_END], 0)
    assert encoded(ending, [text], most) == [whole if len(ids) < most else (ids[:most], max(1, len(ids) - most))]
    assert encoded(ending, [text]) == [whole] and ending.digest != endless.digest


def test_bytes_are_the_default_of_language_models_of_their_own_size():
    assert Workload(name="causal_lm").tokenizer_name == "bytes"
    assert Workload(name="causal_lm", weights="pretrained", model="m").tokenizer_name == "m"
    assert Workload(name="causal_lm", size="model", model="m").tokenizer_name == "m"
    assert Workload().tokenizer_name == "distilbert-base-uncased"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small vocabulary of byte pairs, trained on the spot, as the library saves it."""
    folder = tmp_path_factory.mktemp("bpe")
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(UNICODE * 4, vocab_size=300, min_frequency=2, special_tokens=[END])
    made.save_model(str(folder), "small")
    return folder


def test_merges_are_found_beside_the_vocabulary(trained, tmp_path):
    reference = tokenizers.ByteLevelBPETokenizer(str(trained / "small-vocab.json"), str(trained / "small-merges.txt"))
    for name in ("vocab.json", "merges.txt"):  # as GPT-2's own repository calls them
        shutil.copy(trained / f"small-{name}", tmp_path / name)
    for path in (trained / "small-vocab.json", tmp_path / "vocab.json"):
        found = load(path, ends=True)
        ids = [each for each, _ in encoded(found, UNICODE)]
        assert ids == [[*reference.encode(text).ids, found.end_id] for text in UNICODE]
        assert [found.backend.decode(each[:-1]) for each in ids] == UNICODE
        assert padding_of(found) == found.end_id == reference.token_to_id(END)


UNUSED = r"no merges, so that none of the \d+ pieces of own-vocab\.json is ever used"
VERSION = "#version: 0.2\n"


@pytest.mark.parametrize(
    ("file", "text", "merges", "said"),
    [
        ("vocab.txt", None, None, "No such file"),
        ("vocab.txt", "", None, "empty; expected one WordPiece token per line"),
        ("vocab.txt", "[PAD]\n[UNK]\nword\n", None, r"no \[CLS\], \[SEP\]; expected a WordPiece vocabulary"),
        ("README.md", "no tokenizer here", None, r"workload\.tokenizer: .*: expected a tokenizer saved by"),
        ("tokenizer.json", '{"foo": 1}', None, "expected a tokenizer saved by transformers"),
        ("tokenizer_config.json", "[]", None, "expected a tokenizer saved by transformers"),
        ("own-vocab.json", "trained", None, r"no merges beside it, neither own-merges\.txt nor merges\.txt"),
        ("own-vocab.json", "trained", "", UNUSED),
        ("own-vocab.json", "trained", VERSION, UNUSED),
        ("own-vocab.json", '{"漢": 0}', VERSION, "does not come back from its tokens"),
        ("own-vocab.json", "[1]", VERSION, "no JSON object"),
    ],
)
def test_what_is_no_tokenizer_or_makes_nothing_of_a_text_is_refused(trained, tmp_path, file, text, merges, said):
    stored = (trained / "small-vocab.json").read_text() if text == "trained" else text
    for name, content in ((file, stored), ("merges.txt", merges)):
        if content is not None:
            (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=said):
        load(tmp_path / file if "vocab" in file else tmp_path)


def test_letters_alone_need_no_merges(tmp_path):
    letters = {piece: token for piece, token in load("bytes").backend.get_vocab().items() if len(piece) == 1}
    (tmp_path / "vocab.json").write_text(json.dumps(letters), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("", encoding="utf-8")
    assert encoded(load(tmp_path / "vocab.json"), ["low"]) == [([*b"low"], 0)]
