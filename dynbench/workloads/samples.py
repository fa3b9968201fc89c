"""From a dataset's splits to the samples of a run: tokenised, truncated, held out, subset drawn.

Texts are tokenised in shards in the cache. Of labelled texts all are, and samples are held out and drawn afterwards.
Of a corpus of texts without labels, what is held out and trained on is chosen first, then only that is tokenised: a
first pass counts the texts and takes their digest, which is cached. Whole texts are held out, so that the split is the
same for every tokenizer, length and subset. The number of blocks is known only when all texts are tokenised, so that a
subset of blocks is drawn then.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np

from dynbench.config.schema import Workload
from dynbench.errors import DataError, UsageError
from dynbench.workloads.cache import cache_folder, contents_of, stem, texts_of, warn_not_cached
from dynbench.workloads.data import (
    HELD_OUT_SEED,
    IntArray,
    StoredTokens,
    TokenisedData,
    digest_of,
    held_out_ids,
    offsets_of,
    subset_ids,
)
from dynbench.workloads.datasets import base
from dynbench.workloads.token_shards import Shards, Texts, load_or_tokenise
from dynbench.workloads.tokenizer import TextTokenizer, load_tokenizer, padding_of

logger = logging.getLogger(__name__)
_MEMORY = "/dev/shm"  # noqa: S108  a new folder in it is taken
"""Where files take memory in place of a disk."""

LAYOUT = 1
"""Raised when the shards or the tokenising change their meaning."""
LARGEST_SMALL_ID = 2**16


@dataclass
class Samples:
    """The samples of a run; `decisions` grow while they are made.

    Args:
        train: training samples.
        eval: evaluation samples, where there are any.
        vocab_size: token ids are below it; of images, their number, which is what their samples hold.
        pad_id: token id of the padding.
        num_labels: classes, at least 2.
        sources: where the samples are from, the names of their classes, the tokenizer.
        decisions: what was decided from the data, as `{key: {"value", "reason"}}`.
    """

    train: TokenisedData
    eval: TokenisedData | None
    vocab_size: int
    pad_id: int
    num_labels: int
    sources: dict[str, object]
    decisions: dict[str, object] = field(default_factory=dict)

    @property
    def has_texts(self) -> bool:
        """Whether they were tokenised."""
        return self.sources["tokenizer"] is not None

    def facts(self, model: dict[str, object], **more: object) -> dict[str, object]:
        """What records say of a workload of these samples.

        Args:
            model: its model, see `facts_of`.
            more: what else is known.
        """
        return {
            **self.sources,
            "fingerprint": self.train.fingerprint,
            "train": self.train.describe(),
            "eval": None if self.eval is None else self.eval.describe(),
            **more,
            "model": model,
            "decisions": self.decisions,
        }

    def limit_length(self, wanted: int, positions: int | None) -> None:
        """Record that `workload.max_length` is more than a model's positions, and cut the samples to these."""
        if positions is None or positions >= wanted:
            return
        reason = f"the model has {positions} positions"
        logger.warning("workload.max_length: %d asked for, but %s; samples are cut to %d", wanted, reason, positions)
        self.train = self.train.truncate(positions)
        self.eval = None if self.eval is None else self.eval.truncate(positions)
        self.decisions["workload.max_length"] = decision(positions, reason)


def decision(value: object, reason: str) -> dict[str, object]:
    """A value that was decided from the data, and why."""
    return {"value": value, "reason": reason}


def prepare_samples(splits: base.Splits, settings: Workload, seed: int, *, classes: bool = True) -> Samples:
    """Tokenise, truncate to `max_length`, hold out evaluation samples where there are none, draw the subset.

    Args:
        splits: what the dataset gave.
        settings: the configuration's `workload` section.
        seed: `train.seed`, for the subset.
        classes: the labels are to be learnt; without, texts end with the tokenizer's end of text, and nothing pads.

    Raises:
        DataError: evaluation labels that training never shows; a data or tokenizer file that cannot be used.
        HubError: a tokenizer that is neither cached nor reachable.
        UsageError: a tokenizer without the token that pads, or no labels to be learnt.
    """
    train, evaluation = splits.train, splits.eval
    if not classes and isinstance(train, base.TextSplit | base.CorpusSplit):
        assert evaluation is None or isinstance(evaluation, base.TextSplit | base.CorpusSplit)
        return corpus_samples(train, evaluation, settings, load_tokenizer(settings, ends=True), seed)
    samples = _of_images(splits, settings) if isinstance(train, base.ImageSplit) else _of_tokens(splits, settings)
    if classes:
        _check_labels(samples, splits)
    if isinstance(train, base.LengthSplit):
        _warn_of_cut(train, samples, settings.max_length)
    if samples.eval is None:
        held_out, rest = _held_out(len(samples.train), "training samples", samples.decisions)
        if len(held_out):
            samples.eval, samples.train = samples.train.take(held_out), samples.train.take(rest)
    if settings.subset is not None:
        subset = _subset(len(samples.train), settings.subset, "samples", seed, samples.decisions)
        samples.train = samples.train.take(subset)
    return samples


def corpus_samples(
    train: base.TextSplit | base.CorpusSplit,
    evaluation: base.TextSplit | base.CorpusSplit | None,
    settings: Workload,
    tokenizer: TextTokenizer,
    seed: int,
) -> Samples:
    """Texts without their labels, cut to `max_length`, or blocks of it.

    Args:
        train: texts to train on.
        evaluation: texts to evaluate on; None holds some out.
        settings: the `workload` section.
        tokenizer: makes token ids of them.
        seed: `train.seed`, for the subset.

    Raises:
        DataError: what reading the texts raises; a text without tokens, or too few for a block.
    """
    folder, decisions, part = cache_folder(settings), dict[str, object](), ""
    texts = contents_of(folder, train).texts
    if evaluation is not None:
        rest, held_out = np.arange(texts), np.arange(contents_of(folder, evaluation).texts)
    else:
        held_out, rest = _held_out(texts, "texts", decisions)
    if settings.subset is not None and not settings.blocks:
        rest = rest[_subset(len(rest), settings.subset, "texts", seed, decisions)]
        part = f"-subset-{settings.subset}-{seed}"

    def samples(split: base.TextSplit | base.CorpusSplit, ids: IntArray, role: str, part: str = "") -> TokenisedData:
        shards = _tokenised(split, settings, tokenizer, ids, role, part)
        tokens = StoredTokens(shards.ids)
        if settings.blocks:
            starts, lengths = _blocks(len(tokens), settings.max_length, role, split.source, decisions)
            return TokenisedData.from_stored(tokens, starts, lengths, shards.digest)
        starts = offsets_of(shards.lengths)[:-1]
        return TokenisedData.from_stored(tokens, starts, shards.lengths, shards.digest, np.concatenate(shards.removed))

    evaluation_data = samples(evaluation or train, held_out, "eval") if len(held_out) else None
    data = samples(train, rest, "train", part)
    if settings.subset is not None and settings.blocks:
        data = data.take(_subset(len(data), settings.subset, "blocks", seed, decisions))
    sources = _sources(base.Splits(train, evaluation), settings, tokenizer)
    # No model or loss looks at padding or labels.
    return Samples(data, evaluation_data, tokenizer.vocab_size, 0, 2, sources, decisions)


def _blocks(
    tokens: int, length: int, role: str, source: str, decisions: dict[str, object]
) -> tuple[IntArray, IntArray]:
    """Where blocks of so many tokens begin in all tokens, and their lengths."""
    number, rest = divmod(tokens, length)
    if number == 0:
        raise DataError(
            f"{source}: {tokens} tokens of {role} texts fill no block of workload.max_length {length}",
            "Set workload.max_length to less, or workload.blocks to false.",
        )
    reason = f"{number} blocks of {length} tokens; the last {rest} tokens fill none and are left out"
    decisions[f"workload.blocks.{role}"] = decision(number, reason)
    return np.arange(number, dtype=np.int64) * length, np.full(number, length, dtype=np.int64)


def _tokenised(
    split: base.TextSplit | base.CorpusSplit,
    settings: Workload,
    tokenizer: TextTokenizer,
    ids: IntArray | None,
    role: str,
    part: str = "",
) -> Shards:
    """The shards of some texts, from the cache or made and cached.

    Args:
        split: whose texts.
        settings: the `workload` section.
        tokenizer: makes token ids of them.
        ids: their numbers, ascending, shape [n]; None for all.
        role: what they are for, in the folder's name.
        part: which of them they are, in the folder's name.
    """
    length = None if settings.blocks else settings.max_length
    contents = contents_of(cache_folder(settings), split)
    ids = np.arange(contents.texts) if ids is None else ids
    texts = Texts(
        lambda: _chosen(texts_of(split), ids),
        tokenizer.encoder(length),
        np.uint16 if tokenizer.vocab_size <= LARGEST_SMALL_ID else np.uint32,
        round(contents.characters * len(ids) / contents.texts),
        split.source,
        length is None,
    )
    cut = "blocks" if length is None else str(length)
    folder = cache_folder(settings) / f"{stem(split)}-{role}{part}-{cut}-{tokenizer.digest[:8]}"
    facts = {
        "layout": LAYOUT,
        "texts": contents.digest,
        "chosen": digest_of(ids.astype(np.int64)),
        "tokenizer": tokenizer.digest,
        "max_length": length,
    }
    try:
        return load_or_tokenise(folder, facts, texts)
    except OSError as error:
        warn_not_cached("tokenised texts", folder.parent, error)
    try:
        return _not_cached(facts, texts, None)
    except OSError as error:
        logger.warning("they cannot be stored in a temporary folder either (%s); trying %s", error, _MEMORY)
        return _not_cached(facts, texts, _MEMORY)


def _not_cached(facts: dict[str, object], texts: Texts, place: str | None) -> Shards:
    """Shards in a temporary folder that is removed at once: what is mapped stays readable."""
    with tempfile.TemporaryDirectory(prefix="dynbench-", dir=place) as temporary:
        return load_or_tokenise(Path(temporary) / "shards", facts, texts)


def _chosen(texts: Iterator[str], ids: IntArray) -> Iterator[str]:
    """The texts of these numbers, ascending; what is behind the last of them is not read."""
    for skipped in (np.diff(ids, prepend=-1) - 1).tolist():
        yield from islice(texts, skipped, skipped + 1)


def _of_tokens(splits: base.Splits, settings: Workload) -> Samples:
    """Labelled texts, or samples that are tokens already."""
    first = splits.train
    tokenizer = load_tokenizer(settings) if isinstance(first, base.TextSplit) else None
    train = _data_of(first, "train", tokenizer, settings)
    evaluation = None if splits.eval is None else _data_of(splits.eval, "eval", tokenizer, settings)
    if tokenizer is not None:
        vocab_size, pad_id = tokenizer.vocab_size, padding_of(tokenizer)
    else:
        assert isinstance(first, base.TokenSplit | base.LengthSplit)
        vocab_size, pad_id = first.vocab_size, first.pad_id
    num_labels = max(2, len(_class_names(splits)), int(train.labels.max()) + 1)
    return Samples(train, evaluation, vocab_size, pad_id, num_labels, _sources(splits, settings, tokenizer))


def _data_of(split: base.Split, role: str, tokenizer: TextTokenizer | None, settings: Workload) -> TokenisedData:
    if isinstance(split, base.TokenSplit):
        return split.data.truncate(settings.max_length)
    if isinstance(split, base.LengthSplit):
        lengths = np.minimum(split.lengths, settings.max_length)
        removed = split.lengths - lengths
        found = replace(split.generate(lengths), removed=removed if removed.any() else None)
        return found if split.second is None else found.with_second(split.second)
    if isinstance(split, base.CorpusSplit):
        raise UsageError(
            f"workload.dataset: {settings.dataset} has texts without labels, which {settings.name} is to learn",
            "Use --workload causal_lm, or a data set with labels.",
        )
    assert tokenizer is not None and isinstance(split, base.TextSplit)
    shards = _tokenised(split, settings, tokenizer, None, role)
    tokens = np.concatenate(shards.ids).astype(np.int32)
    return TokenisedData.from_arrays(tokens, offsets_of(shards.lengths), split.labels, np.concatenate(shards.removed))


def _of_images(splits: base.Splits, settings: Workload) -> Samples:
    """A sample is the number of its image, those of evaluation images after all others, and one token long."""
    train, evaluation = splits.train, splits.eval
    assert isinstance(train, base.ImageSplit) and (evaluation is None or isinstance(evaluation, base.ImageSplit))
    evaluation_data = None if evaluation is None else _numbers(len(train), evaluation.labels)
    number = len(train) + (0 if evaluation is None else len(evaluation))
    num_labels = max(2, len(train.classes), int(train.labels.max()) + 1)
    return Samples(_numbers(0, train.labels), evaluation_data, number, 0, num_labels, _sources(splits, settings, None))


def _numbers(first: int, labels: IntArray) -> TokenisedData:
    numbers = np.arange(first, first + len(labels), dtype=np.int32)
    return TokenisedData.from_arrays(numbers, np.arange(len(labels) + 1, dtype=np.int64), labels)


def _class_names(splits: base.Splits) -> tuple[str, ...]:
    return splits.train.classes if isinstance(splits.train, base.TextSplit | base.ImageSplit) else ()


def _sources(splits: base.Splits, settings: Workload, tokenizer: TextTokenizer | None) -> dict[str, object]:
    names = _class_names(splits) if base.has_classes(settings) else ()
    return {
        "dataset": settings.dataset,
        "train_source": splits.train.source,
        "eval_source": None if splits.eval is None else splits.eval.source,
        "labels": {name: index for index, name in enumerate(names)},
        "tokenizer": None if tokenizer is None else {"source": tokenizer.source, "digest": tokenizer.digest},
    }


def _warn_of_cut(split: base.LengthSplit, samples: Samples, max_length: int) -> None:
    """Warn of lengths that are not trained on as they stand: they are all that this data is."""
    n_cut = int((split.lengths > max_length).sum())
    if n_cut:
        seen = f"{n_cut} of {len(split.lengths)} lengths of {split.source} are greater, up to {split.lengths.max()}"
        logger.warning("workload.max_length: %s; they are cut to %d tokens (--max-length)", seen, max_length)
        samples.decisions["workload.max_length"] = decision(max_length, f"{seen}; they are cut")


def _check_labels(samples: Samples, splits: base.Splits) -> None:
    if len(np.unique(samples.train.labels)) == 1:
        only = int(samples.train.labels[0])
        classes = _class_names(splits)
        label = classes[only] if classes else only
        logger.warning("every sample of %s has the label %s: nothing to learn", splits.train.source, label)
    if samples.eval is None or splits.eval is None:
        return
    unknown = np.flatnonzero(samples.eval.labels >= samples.num_labels)
    if len(unknown):
        raise DataError(
            f"{splits.eval.source}: label {samples.eval.labels[unknown[0]]} of sample {unknown[0] + 1}; "
            f"expected 0 to {samples.num_labels - 1}, the labels of {splits.train.source}"
        )


def _held_out(available: int, unit: str, decisions: dict[str, object]) -> tuple[IntArray, IntArray]:
    """What is held out for evaluation of so many samples or texts, and the rest, ascending; none of a few."""
    held_out, rest = held_out_ids(available)
    reason = f"no evaluation file; drawn from the {unit} with seed {HELD_OUT_SEED} and left out of training"
    few = f"{available} {unit} are too few to hold some out"
    decisions["workload.eval"] = decision(len(held_out), reason if len(held_out) else few)
    return held_out, rest


def _subset(available: int, wanted: int, unit: str, seed: int, decisions: dict[str, object]) -> IntArray:
    """The numbers of a subset, ascending, of so many samples, texts or blocks."""
    if wanted > available:
        logger.warning("workload.subset: %d of %d training %s asked for; all are taken", wanted, available, unit)
        decisions["workload.subset"] = decision(available, f"{wanted} asked for, all there are taken")
        return np.arange(available)
    decisions["workload.subset"] = decision(wanted, f"drawn from {available} {unit} with seed {seed}")
    return subset_ids(available, wanted, seed)
