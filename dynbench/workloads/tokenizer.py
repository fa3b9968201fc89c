"""Tokenizers from the hub, a local folder or a vocab.txt, all as one fast tokenizer of the `tokenizers` library."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import transformers

from dynbench.config.paths import VOCABULARY
from dynbench.config.schema import Workload
from dynbench.errors import UsageError
from dynbench.workloads.hub import load_stored
from dynbench.workloads.quiet import quiet_libraries
from dynbench.workloads.vocabulary import KEY, read_vocabulary

logger = logging.getLogger(__name__)

CHUNK_TEXTS = 20_000
EXPECTED = "a tokenizer saved by transformers (tokenizer.json, tokenizer_config.json)"
WAYS_OUT = "Name a local tokenizer (--tokenizer, a folder or a vocab.txt), or use --dataset embedded."


@dataclass(frozen=True)
class TextTokenizer:
    """A fast tokenizer with the facts that the workload needs.

    Args:
        backend: the tokenizer, truncation and padding off.
        pad_id: token id of the padding.
        vocab_size: token ids are below it.
        source: where it comes from, for messages and records.
        digest: digest of its vocabulary and rules.
    """

    backend: tokenizers.Tokenizer
    pad_id: int
    vocab_size: int
    source: str
    digest: str

    def encode(self, texts: Sequence[str], max_length: int) -> Iterator[tuple[list[int], int]]:
        """Token ids of each text with special tokens, at most `max_length` of them, and how many tokens that cut off.

        An empty text has the special tokens only, and none where the tokenizer adds none.
        """
        self.backend.enable_truncation(max_length)
        special = self.backend.num_special_tokens_to_add(False)
        for start in range(0, len(texts), CHUNK_TEXTS):
            logger.info("tokenising text %d of %d", start + 1, len(texts))
            for encoding in self.backend.encode_batch(list(texts[start : start + CHUNK_TEXTS])):
                yield encoding.ids, sum(len(rest.ids) - special for rest in encoding.overflowing)


def load_tokenizer(settings: Workload) -> TextTokenizer:
    """The tokenizer of `workload.tokenizer`, or the model's own.

    Raises:
        DataError: a local folder or vocabulary that cannot be used.
        HubError: a hub name that is neither cached nor reachable.
        UsageError: no fast tokenizer, or one with nothing to pad with.
    """
    key, name = (KEY, settings.tokenizer) if settings.tokenizer is not None else ("workload.model", settings.model)
    if Path(name).suffix == VOCABULARY:
        return _from_vocabulary(Path(name).expanduser())
    quiet_libraries()
    loaded = load_stored(key, name, _load, EXPECTED, WAYS_OUT)
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise UsageError(f"{key}: {name} has no fast tokenizer (tokenizer.json)", WAYS_OUT)
    pad_id = loaded.pad_token_id
    if pad_id is None and loaded.eos_token_id is not None:
        logger.info("%s has no padding token; its end token %s pads", name, loaded.eos_token)
        pad_id = loaded.eos_token_id
    if pad_id is None:
        hint = "Use the tokenizer of an encoder such as DistilBERT."
        raise UsageError(f"{key}: {name} has neither a padding token nor an end token", hint)
    return _wrap(backend, pad_id, name)


def _load(where: str, local_only: bool) -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(where, local_files_only=local_only)


def _from_vocabulary(path: Path) -> TextTokenizer:
    """WordPiece with BERT's lower-casing rules; token ids are line numbers from 0."""
    vocabulary = {word: index for index, word in enumerate(read_vocabulary(path))}
    wordpiece = tokenizers.BertWordPieceTokenizer(vocab=vocabulary, lowercase=True)
    backend = tokenizers.Tokenizer.from_str(wordpiece.to_str())
    return _wrap(backend, vocabulary["[PAD]"], str(path))


def _wrap(backend: tokenizers.Tokenizer, pad_id: int, source: str) -> TextTokenizer:
    backend.no_truncation()
    backend.no_padding()
    digest = hashlib.sha256(backend.to_str().encode()).hexdigest()[:32]
    return TextTokenizer(backend, pad_id, max(backend.get_vocab().values()) + 1, source, digest)
