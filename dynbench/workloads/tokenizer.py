"""Tokenizers from the hub, a folder, a vocabulary or none, all as one fast tokenizer of the `tokenizers` library.

A vocabulary is WordPiece's (`vocab.txt`) or of pairs of bytes as GPT-2's (Radford et al., 2019); without one, bytes are
the tokens. Only those of the hub and of folders import transformers.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from dynbench.config.paths import BPE_VOCABULARY, BYTES, VOCABULARY
from dynbench.config.schema import Workload
from dynbench.errors import DataError, UsageError
from dynbench.workloads.datasets.base import read_lines, reading

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
    with reading(KEY, path):
        words = read_lines(path, "expected one WordPiece token per line")
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
    if pieces and not json.loads(backend.to_str())["model"]["merges"]:
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


def _byte_pairs(model: models.BPE) -> tokenizers.Tokenizer:
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


logger = logging.getLogger(__name__)

EXPECTED = "a tokenizer saved by transformers (tokenizer.json, tokenizer_config.json)"
WAYS_OUT = "Name a local tokenizer (--tokenizer, a folder, vocab.txt, vocab.json or bytes), or use --dataset embedded."


@dataclass(frozen=True)
class TextTokenizer:
    """A fast tokenizer with the facts that the workload needs.

    Args:
        backend: the tokenizer, truncation and padding off.
        pad_id: token id of the padding; None where it has none.
        vocab_size: token ids are below it.
        source: where it comes from, for messages and records.
        digest: digest of its vocabulary and rules, `end_id` among them.
        end_id: what is put behind a text that is not cut; None puts nothing.
    """

    backend: tokenizers.Tokenizer
    pad_id: int | None
    vocab_size: int
    source: str
    digest: str
    end_id: int | None = None

    def encoder(self, max_length: int | None) -> Callable[[Sequence[str]], Iterator[tuple[list[int], int]]]:
        """What gives token ids of each text, and how many tokens were cut off; several threads may call it.

        An empty text has the special tokens only, and none where the tokenizer adds none.

        Args:
            max_length: of the ids, special tokens among them; None keeps whole texts.
        """
        if max_length is None:
            self.backend.no_truncation()
        else:
            self.backend.enable_truncation(max_length)
        special = self.backend.num_special_tokens_to_add(False)

        def encode(texts: Sequence[str]) -> Iterator[tuple[list[int], int]]:
            for encoding in self.backend.encode_batch_fast(list(texts)):
                cut = sum(len(rest.ids) - special for rest in encoding.overflowing)
                yield self._ended(encoding.ids, cut, max_length)

        return encode

    def _ended(self, ids: list[int], cut: int, max_length: int | None) -> tuple[list[int], int]:
        """Tokens with their end behind them, which is the first to be cut; and how many were cut off."""
        if self.end_id is None or cut or (ids and ids[-1] == self.end_id):
            return ids, cut
        return ([*ids, self.end_id], 0) if max_length is None or len(ids) < max_length else (ids, 1)


def load_tokenizer(settings: Workload, *, ends: bool = False) -> TextTokenizer:
    """The tokenizer that the `workload` section means.

    Args:
        settings: the `workload` section.
        ends: put the tokenizer's end of text behind every text, where it has one.

    Raises:
        DataError: a local folder or vocabulary that cannot be used.
        HubError: a hub name that is neither cached nor reachable.
        UsageError: no fast tokenizer.
    """
    backend, pad_id, end_id = _find(settings)
    backend.no_truncation()
    backend.no_padding()
    digest, vocab_size = (
        hashlib.sha256(backend.to_str().encode()).hexdigest()[:32],
        max(backend.get_vocab().values()) + 1,
    )
    source = settings.tokenizer_name
    if Path(source).suffix == VOCABULARY:
        source = str(Path(source).expanduser())
    if not ends or end_id is None:
        return TextTokenizer(backend, pad_id, vocab_size, source, digest)
    return TextTokenizer(backend, pad_id, vocab_size, source, f"{digest}+{end_id}", end_id)


def _find(settings: Workload) -> tuple[tokenizers.Tokenizer, int | None, int | None]:
    """A tokenizer, and its tokens that pad and that end a text, where it has them."""
    name = settings.tokenizer_name
    key = KEY if settings.tokenizer is not None else "workload.model"
    if name == BYTES:
        return byte_tokenizer(), BYTE_PAD, BYTE_END
    if Path(name).suffix == VOCABULARY:
        # WordPiece with BERT's lower-casing rules; token ids are line numbers from 0.
        vocabulary = {word: index for index, word in enumerate(read_vocabulary(Path(name).expanduser()))}
        wordpiece = tokenizers.BertWordPieceTokenizer(vocab=vocabulary, lowercase=True)
        return tokenizers.Tokenizer.from_str(wordpiece.to_str()), vocabulary["[PAD]"], None
    if name.endswith(BPE_VOCABULARY):
        byte_pairs = read_byte_level(Path(name).expanduser())
        end = byte_pairs.token_to_id(END)
        return byte_pairs, end, end
    from dynbench.workloads.hub import load_stored, quiet_libraries

    quiet_libraries()
    loaded = load_stored(key, name, _load, EXPECTED, WAYS_OUT)
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise UsageError(f"{key}: {name} has no fast tokenizer (tokenizer.json)", WAYS_OUT)
    pad_id, end_id = loaded.pad_token_id, loaded.eos_token_id
    if pad_id is None and end_id is not None:
        logger.info("%s has no padding token; its end token %s pads", name, loaded.eos_token)
        pad_id = end_id
    return backend, pad_id, end_id


def padding_of(tokenizer: TextTokenizer) -> int:
    """The token that pads.

    Raises:
        UsageError: there is none.
    """
    if tokenizer.pad_id is None:
        raise UsageError(
            f"{KEY}: {tokenizer.source} has neither a padding token nor an end token",
            "Use the tokenizer of an encoder such as DistilBERT.",
        )
    return tokenizer.pad_id


def _load(where: str, local_only: bool) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(where, local_files_only=local_only, trust_remote_code=False)
