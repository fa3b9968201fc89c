from __future__ import annotations

import shutil

import pytest

from dynbench.config.schema import Workload
from dynbench.errors import DataError, HubError, UsageError
from dynbench.workloads.tokenizer import load_tokenizer, padding_of

TEXTS = ["The GOOD film.", "unlikely xyzzy", "", "very very very very"]
IDS = [[2, 13, 5, 7, 12, 3], [2, 9, 10, 11, 1, 3], [2, 3], [2, 8, 8, 8, 8, 3]]


def ids(tokenizer, texts, max_length):
    return [encoded for encoded, _ in tokenizer.encode(texts, max_length)]


def test_vocab_txt_is_lower_cased_wordpiece(vocab_file):
    tokenizer = load_tokenizer(Workload(tokenizer=str(vocab_file)))
    assert ids(tokenizer, TEXTS, 64) == IDS
    assert (tokenizer.pad_id, tokenizer.vocab_size) == (0, 15)


def test_truncation_keeps_the_closing_token(vocab_file):
    tokenizer = load_tokenizer(Workload(tokenizer=str(vocab_file)))
    assert ids(tokenizer, TEXTS, 4) == [[2, 13, 5, 3], [2, 9, 10, 3], [2, 3], [2, 8, 8, 3]]


@pytest.mark.parametrize("max_length", [2, 3, 4, 5, 64])
def test_what_truncation_cut_off_is_counted(vocab_file, max_length):
    tokenizer = load_tokenizer(Workload(tokenizer=str(vocab_file)))
    removed = [count for _, count in tokenizer.encode(TEXTS, max_length)]
    assert removed == [max(0, len(whole) - max_length) for whole in IDS]


def test_local_folder_hub_cache_and_vocabulary_agree(model_folder, vocab_file, cache_on_hub):
    cache_on_hub("someone/tiny", model_folder)
    names = [str(model_folder), "someone/tiny", str(vocab_file)]
    assert all(ids(load_tokenizer(Workload(tokenizer=name)), TEXTS, 64) == IDS for name in names)


def test_without_a_name_it_is_the_models_own(model_folder):
    assert load_tokenizer(Workload(model=str(model_folder))).source == str(model_folder)


def test_the_digest_follows_the_vocabulary_not_the_path(vocab_file, tmp_path):
    copy, other = tmp_path / "copy.txt", tmp_path / "other.txt"
    shutil.copy(vocab_file, copy)
    other.write_text(vocab_file.read_text() + "new\n")
    digests = [load_tokenizer(Workload(tokenizer=str(path))).digest for path in (vocab_file, copy, other)]
    assert digests[0] == digests[1] != digests[2]


def test_the_digest_does_not_follow_earlier_use(vocab_file):
    tokenizer = load_tokenizer(Workload(tokenizer=str(vocab_file)))
    list(tokenizer.encode(TEXTS, 4))
    assert ids(tokenizer, TEXTS, 64) == IDS


def test_bad_vocabularies_are_named(tmp_path):
    path = tmp_path / "vocab.txt"
    with pytest.raises(DataError, match="No such file"):
        load_tokenizer(Workload(tokenizer=str(path)))
    path.write_text("")
    with pytest.raises(DataError, match="empty; expected one WordPiece token per line"):
        load_tokenizer(Workload(tokenizer=str(path)))
    path.write_text("[PAD]\n[UNK]\nword\n")
    with pytest.raises(DataError, match=r"no \[CLS\], \[SEP\]; expected a WordPiece vocabulary"):
        load_tokenizer(Workload(tokenizer=str(path)))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("README.md", "no tokenizer here"),
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"foo": 1}'),
        ("tokenizer_config.json", "[]"),
    ],
)
def test_a_folder_without_a_tokenizer_is_named_whatever_the_library_raises(tmp_path, file, text):
    (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=r"workload\.tokenizer: .*: expected a tokenizer saved by transformers"):
        load_tokenizer(Workload(tokenizer=str(tmp_path)))


def test_a_tokenizer_without_padding_is_refused(model_folder, tmp_path):
    folder = tmp_path / "no-pad"
    folder.mkdir()
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(model_folder / name, folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(UsageError, match="has neither a padding token nor an end token"):
        padding_of(load_tokenizer(Workload(tokenizer=str(folder))))


def test_a_tokenizer_with_an_end_token_only_pads_with_it(model_folder, tmp_path):
    folder = tmp_path / "end"
    folder.mkdir()
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(model_folder / name, folder)
    settings = '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "[SEP]"}'
    (folder / "tokenizer_config.json").write_text(settings)
    assert load_tokenizer(Workload(tokenizer=str(folder))).pad_id == 3


def test_an_unknown_hub_name_offers_local_tokenizers():
    with pytest.raises(HubError) as caught:
        load_tokenizer(Workload())
    assert caught.value.message.startswith("workload.model: 'distilbert-base-uncased' is not in the hub's cache")
    assert "vocab.txt" in caught.value.hint


def test_words_are_split_as_bert_splits_them(tmp_path):
    """Punctuation and ideographs stand alone, accents go, and a word that its pieces do not make up is unknown."""
    pieces = "[PAD] [UNK] [CLS] [SEP] it s ' a film - making . naive cafe $ 9 99 un ##aff ##able ! 电 影"
    numbers = {piece: number for number, piece in enumerate(pieces.split())}
    (tmp_path / "vocab.txt").write_text("\n".join(numbers), encoding="utf-8")
    tokenizer = load_tokenizer(Workload(tokenizer=str(tmp_path / "vocab.txt")))
    sentences = {
        "It's a film-making.": "it ' s a film - making .",
        "a\tNaïve  CAFÉ\n": "a naive cafe",
        "$9.99!": "$ 9 . 99 !",
        "unaffable 电影": "un ##aff ##able 电 影",
        "a unfilm": "a [UNK]",
    }
    expected = [[2, *(numbers[piece] for piece in split.split()), 3] for split in sentences.values()]
    assert ids(tokenizer, list(sentences), 512) == expected
