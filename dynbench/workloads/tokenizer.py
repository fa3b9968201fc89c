"""Tokenizers from the hub, a folder, a vocabulary or none, all as one fast tokenizer of the `tokenizers` library."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tokenizers
import transformers

from dynbench.config.paths import BPE_VOCABULARY, BYTES, VOCABULARY
from dynbench.config.schema import Workload
from dynbench.errors import UsageError
from dynbench.workloads.byte_level import BYTE_END, BYTE_PAD, END, KEY, byte_tokenizer, read_byte_level, read_vocabulary
from dynbench.workloads.hub import load_stored, quiet_libraries

logger = logging.getLogger(__name__)

CHUNK_TEXTS = 20_000
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

    def encode(self, texts: Sequence[str], max_length: int) -> Iterator[tuple[list[int], int]]:
        """Token ids of each text with special tokens, at most `max_length` of them, and how many tokens that cut off.

        An empty text has the special tokens only, and none where the tokenizer adds none.
        """
        encode = self.encoder(max_length)
        for start in range(0, len(texts), CHUNK_TEXTS):
            logger.info("tokenising text %d of %d", start + 1, len(texts))
            yield from encode(texts[start : start + CHUNK_TEXTS])

    def encoder(self, max_length: int | None) -> Callable[[Sequence[str]], Iterator[tuple[list[int], int]]]:
        """What encodes as `encode` does, whole texts where `max_length` is None; several threads may call it."""
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
    tokenizer, end_id = _find(settings)
    if not ends or end_id is None:
        return tokenizer
    return replace(tokenizer, end_id=end_id, digest=f"{tokenizer.digest}+{end_id}")


def _find(settings: Workload) -> tuple[TextTokenizer, int | None]:
    """A tokenizer, and its token for the end of a text."""
    name = settings.tokenizer_name
    key = KEY if settings.tokenizer is not None else "workload.model"
    if name == BYTES:
        return _wrap(byte_tokenizer(), BYTE_PAD, name), BYTE_END
    if Path(name).suffix == VOCABULARY:
        return _from_vocabulary(Path(name).expanduser()), None
    if name.endswith(BPE_VOCABULARY):
        byte_pairs = read_byte_level(Path(name).expanduser())
        end = byte_pairs.token_to_id(END)
        return _wrap(byte_pairs, end, name), end
    quiet_libraries()
    loaded = load_stored(key, name, _load, EXPECTED, WAYS_OUT)
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise UsageError(f"{key}: {name} has no fast tokenizer (tokenizer.json)", WAYS_OUT)
    pad_id, end_id = loaded.pad_token_id, loaded.eos_token_id
    if pad_id is None and end_id is not None:
        logger.info("%s has no padding token; its end token %s pads", name, loaded.eos_token)
        pad_id = end_id
    return _wrap(backend, pad_id, name), end_id


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


def _load(where: str, local_only: bool) -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(where, local_files_only=local_only, trust_remote_code=False)


def _from_vocabulary(path: Path) -> TextTokenizer:
    """WordPiece with BERT's lower-casing rules; token ids are line numbers from 0."""
    vocabulary = {word: index for index, word in enumerate(read_vocabulary(path))}
    wordpiece = tokenizers.BertWordPieceTokenizer(vocab=vocabulary, lowercase=True)
    backend = tokenizers.Tokenizer.from_str(wordpiece.to_str())
    return _wrap(backend, vocabulary["[PAD]"], str(path))


def _wrap(backend: tokenizers.Tokenizer, pad_id: int | None, source: str) -> TextTokenizer:
    backend.no_truncation()
    backend.no_padding()
    digest = hashlib.sha256(backend.to_str().encode()).hexdigest()[:32]
    return TextTokenizer(backend, pad_id, max(backend.get_vocab().values()) + 1, source, digest)
