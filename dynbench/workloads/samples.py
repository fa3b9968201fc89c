"""From a dataset's splits to the samples of a run: tokenised, truncated, held out, subset drawn."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

import numpy as np

from dynbench.config.schema import Workload
from dynbench.errors import DataError, UsageError
from dynbench.workloads.cache import cache_folder, cache_key, load_or_build
from dynbench.workloads.corpus import corpus_of, corpus_samples
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.datasets.articles import has_classes
from dynbench.workloads.datasets.base import (
    CorpusSplit,
    ImageSplit,
    LengthSplit,
    Split,
    Splits,
    TextSplit,
    TokenSplit,
)
from dynbench.workloads.held_out import HELD_OUT_SEED, held_out_ids, held_out_of, subset_ids
from dynbench.workloads.tokenizer import TextTokenizer, load_tokenizer, padding_of

logger = logging.getLogger(__name__)


@dataclass
class Samples:
    """The samples of a run; `facts` and `decisions` grow while they are made.

    Args:
        train: training samples.
        eval: evaluation samples, where there are any.
        vocab_size: token ids are below it; of images, their number, which is what their samples hold.
        pad_id: token id of the padding.
        num_labels: classes, at least 2.
        facts: sources of the samples and the tokenizer.
        decisions: what was decided from the data, as `{key: {"value", "reason"}}`.
    """

    train: TokenisedData
    eval: TokenisedData | None
    vocab_size: int
    pad_id: int
    num_labels: int
    facts: dict[str, object]
    decisions: dict[str, object] = field(default_factory=dict)

    def decide(self, key: str, value: object, reason: str) -> None:
        """Record a decision."""
        self.decisions[key] = {"value": value, "reason": reason}

    def truncate(self, max_length: int) -> None:
        """Cut every sample to `max_length` tokens."""
        self.train = self.train.truncate(max_length)
        self.eval = None if self.eval is None else self.eval.truncate(max_length)


def prepare_samples(splits: Splits, settings: Workload, seed: int, *, classes: bool = True) -> Samples:
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
    if not classes and isinstance(splits.train, TextSplit | CorpusSplit):
        return _of_corpus(splits, settings, seed)
    samples = _tokenise(splits, settings)
    if classes:
        _check_labels(samples, splits)
    if isinstance(splits.train, LengthSplit):
        _tell_cut(splits.train, samples, settings.max_length)
    if samples.eval is None:
        _hold_out(samples)
    if settings.subset is not None:
        _draw_subset(samples, settings.subset, seed)
    return samples


def _of_corpus(splits: Splits, settings: Workload, seed: int) -> Samples:
    tokenizer = load_tokenizer(settings, ends=True)
    train, evaluation = (
        corpus_of(split) if isinstance(split, TextSplit) else split for split in (splits.train, splits.eval)
    )
    assert isinstance(train, CorpusSplit) and (evaluation is None or isinstance(evaluation, CorpusSplit))
    corpus = corpus_samples(train, evaluation, settings, tokenizer, seed)
    return Samples(
        corpus.train,
        corpus.eval,
        tokenizer.vocab_size,
        pad_id=0,  # nothing of the model or the loss looks at padding
        num_labels=2,
        facts=_facts(splits, settings, tokenizer),
        decisions=corpus.decisions,
    )


def _tokenise(splits: Splits, settings: Workload) -> Samples:
    first = splits.train
    tokenizer = load_tokenizer(settings) if isinstance(first, TextSplit) else None
    if isinstance(first, ImageSplit):
        return _of_images(first, splits, settings)
    train = _tokens_of(first, tokenizer, settings)
    evaluation = None if splits.eval is None else _tokens_of(splits.eval, tokenizer, settings)
    facts = _facts(splits, settings, tokenizer)
    num_labels = max(2, len(_class_names(splits)), int(train.labels.max()) + 1)
    if tokenizer is not None:
        return Samples(train, evaluation, tokenizer.vocab_size, padding_of(tokenizer), num_labels, facts)
    assert isinstance(first, TokenSplit | LengthSplit)
    return Samples(train, evaluation, first.vocab_size, first.pad_id, num_labels, facts)


def _of_images(train: ImageSplit, splits: Splits, settings: Workload) -> Samples:
    """A sample is the number of its image, those of evaluation images after all others, and one token long."""
    evaluation = splits.eval
    assert evaluation is None or isinstance(evaluation, ImageSplit)
    held = None if evaluation is None else _numbers(len(train), evaluation.labels)
    number = len(train) + (0 if evaluation is None else len(evaluation))
    classes = max(2, len(train.classes), int(train.labels.max()) + 1)
    return Samples(_numbers(0, train.labels), held, number, 0, classes, _facts(splits, settings, None))


def _numbers(first: int, labels: IntArray) -> TokenisedData:
    numbers = np.arange(first, first + len(labels), dtype=np.int32)
    return TokenisedData.from_arrays(numbers, np.arange(len(labels) + 1, dtype=np.int64), labels)


def _class_names(splits: Splits) -> tuple[str, ...]:
    return splits.train.classes if isinstance(splits.train, TextSplit | ImageSplit) else ()


def _facts(splits: Splits, settings: Workload, tokenizer: TextTokenizer | None) -> dict[str, object]:
    names = _class_names(splits) if has_classes(settings) else ()
    return {
        "dataset": settings.dataset,
        "train_source": splits.train.source,
        "eval_source": None if splits.eval is None else splits.eval.source,
        "labels": {name: index for index, name in enumerate(names)},
        "tokenizer": None if tokenizer is None else {"source": tokenizer.source, "digest": tokenizer.digest},
    }


def _tokens_of(split: Split, tokenizer: TextTokenizer | None, settings: Workload) -> TokenisedData:
    if isinstance(split, TokenSplit):
        return split.data.truncate(settings.max_length)
    if isinstance(split, LengthSplit):
        kept = np.minimum(split.lengths, settings.max_length)
        removed = split.lengths - kept
        found = replace(split.generate(kept), removed=removed if removed.any() else None)
        return found if split.second is None else found.with_second(split.second)
    if isinstance(split, CorpusSplit):
        raise UsageError(
            f"workload.dataset: {settings.dataset} has texts without labels, which {settings.name} is to learn",
            "Use --workload causal_lm, or a data set with labels.",
        )
    assert tokenizer is not None and isinstance(split, TextSplit)

    def build() -> TokenisedData:
        logger.info("tokenising %d samples of %s", len(split.texts), split.source)
        samples, removed = zip(*tokenizer.encode(split.texts, settings.max_length), strict=True)
        for index, tokens in enumerate(samples):
            if not tokens:
                raise DataError(
                    f"{split.source}: the text {split.texts[index]!r} of sample {index + 1} has no token",
                    f"Leave such texts out: the tokenizer {tokenizer.source} adds no special tokens.",
                )
        return TokenisedData.from_samples(samples, split.labels, np.array(removed, dtype=np.int64))

    return load_or_build(cache_folder(settings), cache_key(split, tokenizer.digest, settings.max_length), build)


def _tell_cut(split: LengthSplit, samples: Samples, max_length: int) -> None:
    """Lengths are all that this data is, so that those which are not trained on as they stand are told."""
    n_cut = int((split.lengths > max_length).sum())
    if n_cut:
        seen = f"{n_cut} of {len(split.lengths)} lengths of {split.source} are greater, up to {split.lengths.max()}"
        logger.warning("workload.max_length: %s; they are cut to %d tokens (--max-length)", seen, max_length)
        samples.decide("workload.max_length", max_length, f"{seen}; they are cut")


def _check_labels(samples: Samples, splits: Splits) -> None:
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


def _hold_out(samples: Samples) -> None:
    """Move random training samples to evaluation, see `held_out_of`."""
    n_samples = len(samples.train)
    n_held_out = held_out_of(n_samples)
    if n_held_out == 0:
        samples.decide("workload.eval", 0, f"{n_samples} training samples are too few to hold some out")
        return
    held_out, kept = held_out_ids(n_samples)
    samples.eval, samples.train = samples.train.take(held_out), samples.train.take(kept)
    reason = f"no evaluation file; drawn from the training samples with seed {HELD_OUT_SEED} and left out of training"
    samples.decide("workload.eval", n_held_out, reason)


def _draw_subset(samples: Samples, wanted: int, seed: int) -> None:
    available = len(samples.train)
    if wanted > available:
        logger.warning("workload.subset: %d of %d training samples asked for; all are taken", wanted, available)
        samples.decide("workload.subset", available, f"{wanted} asked for, all there are taken")
        return
    samples.train = samples.train.take(subset_ids(available, wanted, seed))
    samples.decide("workload.subset", wanted, f"drawn from {available} with seed {seed}")
