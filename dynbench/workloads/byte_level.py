"""Tokenizers over a text's bytes, or pairs of them as GPT-2's (Radford et al., 2019), and WordPiece's vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from dynbench.errors import DataError
from dynbench.workloads.datasets.lines import read_lines

KEY = "workload.tokenizer"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
END = "<|endoftext|>"
"""GPT-2's end of a text."""
MERGES = "merges.txt"
_TRIED = "The end of 1 text.\n"


def read_vocabulary(path: Path) -> list[str]:
    """The tokens by id.

    Raises:
        DataError: a file that cannot be used, or that lacks one of the special tokens.
    """
    words = read_lines(path, KEY, "expected one WordPiece token per line")
    missing = [token for token in SPECIAL_TOKENS if token not in words]
    if missing:
        raise DataError(f"{KEY}: {path}: no {', '.join(missing)}; expected a WordPiece vocabulary, one token per line")
    return words


BYTE_BEGIN, BYTE_END, BYTE_PAD = 256, 257, 258
"""Token ids behind those of the 256 bytes, each of which is its own id."""


def byte_tokenizer() -> tokenizers.Tokenizer:
    """UTF-8 bytes behind a token that begins every text, 259 ids in all."""
    specials = {"<|begin|>": BYTE_BEGIN, "<|end|>": BYTE_END, "<|pad|>": BYTE_PAD}
    vocabulary = {letter: byte for byte, letter in _letters().items()} | specials
    backend = _byte_pairs(models.BPE(vocab=vocabulary, merges=[]))
    backend.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", BYTE_BEGIN)]
    )
    return backend


def _letters() -> dict[int, str]:
    """The letter that stands for each byte: itself where it is printable, else the next one from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)}


def read_byte_level(path: Path) -> tokenizers.Tokenizer:
    """The byte pairs of `NAME-vocab.json` and of the merges beside it, `NAME-merges.txt` or `merges.txt`.

    Raises:
        DataError: a file that is missing or is none, or a vocabulary that makes nothing of a text.
    """
    merges = merges_beside(path)
    try:
        backend = _byte_pairs(models.BPE.from_file(str(path), str(merges)))
    except Exception as error:  # the library raises plain exceptions
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{KEY}: {path} and {merges.name}: {reason}; expected token to id as JSON, and one merge per line"
        ) from error
    if backend.decode(backend.encode(_TRIED).ids) != _TRIED:
        raise DataError(
            f"{KEY}: {path}: the text {_TRIED!r} does not come back from its tokens; expected a byte-level vocabulary",
            "Use vocab.json and merges.txt of GPT-2 or its kin, or a folder with a tokenizer.json.",
        )
    pieces = sum(len(piece) > 1 and not piece.startswith("<") for piece in backend.get_vocab())
    if pieces and not _has_merges(merges):
        raise DataError(
            f"{KEY}: {merges}: no merges, so that none of the {pieces:,} pieces of {path.name} is ever used; expected "
            "one per line, two pieces with a blank between",
            "Fetch the file again, or use the bytes themselves (--tokenizer bytes).",
        )
    return backend


def merges_beside(path: Path) -> Path:
    """The merges of a vocabulary.

    Raises:
        DataError: there are none, or the vocabulary is no JSON object.
    """
    try:
        with path.open(encoding="utf-8") as file:
            if not isinstance(json.load(file), dict):
                raise ValueError("no JSON object")
    except (OSError, ValueError) as error:
        raise DataError(f"{KEY}: {path}: {error}; expected a JSON object of token to id") from error
    own = path.with_name(path.name.replace("vocab", "merges")).with_suffix(".txt")
    for merges in (own, path.with_name(MERGES)):
        if merges.is_file():
            return merges
    raise DataError(
        f"{KEY}: {path}: no merges beside it, neither {own.name} nor {MERGES}",
        "Put them there, or name a folder with a tokenizer.json.",
    )


def _has_merges(path: Path) -> bool:
    """Whether there is a line behind the version."""
    with path.open(encoding="utf-8") as file:
        return any(line.strip() and not line.startswith("#version") for line in file)


def _byte_pairs(model: models.BPE) -> tokenizers.Tokenizer:
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend
