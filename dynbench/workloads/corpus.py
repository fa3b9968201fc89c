"""A corpus of texts as samples: what is held out and trained on is chosen first, then only that is tokenised.

A first pass counts the texts and takes their digest, which is kept: drawing some of them needs their number, and a
cache is of use only while the texts stay. Whole texts are held out, so that the split is the same for every tokenizer,
length and subset. A subset is drawn of the texts, and nothing else is tokenised; of blocks, the number is known only
when all are, so that a subset of them is drawn then.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.workloads.cache import cache_folder
from dynbench.workloads.contents import contents_of, stem
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.datasets.base import CorpusSplit, TextSplit
from dynbench.workloads.held_out import HELD_OUT_SEED, held_out_ids, subset_ids
from dynbench.workloads.stored_tokens import StoredTokens
from dynbench.workloads.token_shards import Shards, Texts, load_or_tokenise
from dynbench.workloads.tokenizer import TextTokenizer

logger = logging.getLogger(__name__)

LAYOUT = 1
"""Raised when the shards or the tokenising change their meaning."""
LARGEST_SMALL_ID = 2**16


@dataclass
class CorpusSamples:
    """Training and evaluation samples, with what was decided from the texts as `{key: {"value", "reason"}}`."""

    train: TokenisedData
    eval: TokenisedData | None
    decisions: dict[str, object]


def corpus_of(split: TextSplit) -> CorpusSplit:
    """Texts in memory without their labels."""
    digest = hashlib.blake2b("\0".join(split.texts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return CorpusSplit(lambda: iter(split.texts), split.source, (split.source, digest))


def corpus_samples(
    train: CorpusSplit, evaluation: CorpusSplit | None, settings: Workload, tokenizer: TextTokenizer, seed: int
) -> CorpusSamples:
    """Texts cut to `max_length`, or blocks of it.

    Args:
        train: texts to train on.
        evaluation: texts to evaluate on; None holds some out.
        settings: the `workload` section.
        tokenizer: makes token ids of them.
        seed: `train.seed`, for the subset.

    Raises:
        DataError: what reading the texts raises; a text without tokens, or too few for a block.
    """
    tokenise = _Tokenise(settings, tokenizer)
    number = contents_of(tokenise.folder, train).texts
    if evaluation is not None:
        kept, held_out = np.arange(number), np.arange(contents_of(tokenise.folder, evaluation).texts)
    else:
        held_out, kept = held_out_ids(number)
        reason = f"no evaluation file; drawn from the texts with seed {HELD_OUT_SEED} and left out of training"
        few = f"{number} texts are too few to hold some out"
        tokenise.decide("workload.eval", len(held_out), reason if len(held_out) else few)
    part = ""
    if settings.subset is not None and not settings.blocks:
        kept = kept[tokenise.drawn(len(kept), "texts", seed)]
        part = f"-subset-{settings.subset}-{seed}"
    held = tokenise(evaluation or train, held_out, "eval") if len(held_out) else None
    data = tokenise(train, kept, "train", part)
    if settings.subset is not None and settings.blocks:
        data = data.take(tokenise.drawn(len(data), "blocks", seed))
    return CorpusSamples(data, held, tokenise.decisions)


class _Tokenise:
    """Samples of chosen texts, from the cache or made and kept there."""

    def __init__(self, settings: Workload, tokenizer: TextTokenizer) -> None:
        self._settings, self._tokenizer = settings, tokenizer
        self.decisions: dict[str, object] = {}
        self.folder = cache_folder(settings)
        self._length = None if settings.blocks else settings.max_length
        self._encode = tokenizer.encoder(self._length)

    def decide(self, key: str, value: object, reason: str) -> None:
        """Record a decision."""
        self.decisions[key] = {"value": value, "reason": reason}

    def drawn(self, available: int, unit: str, seed: int) -> IntArray:
        """The numbers of the subset, ascending, of so many texts or blocks."""
        wanted = self._settings.subset or available
        if wanted > available:
            logger.warning("workload.subset: %d of %d training %s asked for; all are taken", wanted, available, unit)
            self.decide("workload.subset", available, f"{wanted} asked for, all there are taken")
            return np.arange(available)
        self.decide("workload.subset", wanted, f"drawn from {available} {unit} with seed {seed}")
        return subset_ids(available, wanted, seed)

    def __call__(self, split: CorpusSplit, ids: IntArray, role: str, part: str = "") -> TokenisedData:
        """The samples of the texts `ids`, ascending, shape [n].

        Args:
            split: whose texts.
            ids: their numbers.
            role: what they are for, in the folder's name.
            part: which of them they are, in the folder's name.
        """
        contents = contents_of(self.folder, split)
        small = self._tokenizer.vocab_size <= LARGEST_SMALL_ID
        everything = len(ids) == contents.texts
        texts = Texts(
            split.read if everything else lambda: _chosen(split.read(), ids),
            self._encode,
            np.uint16 if small else np.uint32,
            round(contents.characters * len(ids) / contents.texts),
            split.source,
            self._length is None,
        )
        cut = "blocks" if self._length is None else str(self._length)
        folder = self.folder / f"{stem(split)}-{role}{part}-{cut}-{self._tokenizer.digest[:8]}"
        facts = {
            "layout": LAYOUT,
            "texts": contents.digest,
            "chosen": hashlib.blake2b(ids.astype(np.int64).tobytes(), digest_size=16).hexdigest(),
            "tokenizer": self._tokenizer.digest,
            "max_length": self._length,
        }
        try:
            shards = load_or_tokenise(folder, facts, texts)
        except OSError as error:
            logger.warning(
                "tokenised texts cannot be kept in %s (%s); name a writable folder in workload.cache_dir", folder, error
            )
            with tempfile.TemporaryDirectory(prefix="dynbench-") as temporary:  # what is mapped stays readable
                shards = load_or_tokenise(Path(temporary) / "shards", facts, texts)
        return self._samples(shards, role, split.source)

    def _samples(self, shards: Shards, role: str, source: str) -> TokenisedData:
        tokens = StoredTokens(shards.ids)
        if self._length is not None:
            lengths = np.concatenate([np.diff(offsets) for offsets in shards.offsets])
            starts = np.cumsum(lengths) - lengths
            return TokenisedData.from_stored(tokens, starts, lengths, shards.digest, np.concatenate(shards.removed))
        length = self._settings.max_length
        number, rest = divmod(len(tokens), length)
        if number == 0:
            raise DataError(
                f"{source}: {len(tokens)} tokens of {role} texts fill no block of workload.max_length {length}",
                "Set workload.max_length to less, or workload.blocks to false.",
            )
        reason = f"{number} blocks of {length} tokens; the last {rest} tokens fill none and are left out"
        self.decide(f"workload.blocks.{role}", number, reason)
        starts = np.arange(number, dtype=np.int64) * length
        return TokenisedData.from_stored(tokens, starts, np.full(number, length, dtype=np.int64), shards.digest)


def _chosen(texts: Iterator[str], ids: Sequence[int] | IntArray) -> Iterator[str]:
    """The texts of these numbers, ascending; what is behind the last of them is not read."""
    wanted = iter(ids)
    following = next(wanted, None)
    for number, text in enumerate(texts):
        if following is None:
            return
        if number == following:
            yield text
            following = next(wanted, None)
