"""Language modelling: the next token of every text, cross entropy over the target tokens, perplexity."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dynbench.config.schema import Config
from dynbench.errors import DataError
from dynbench.kernels.packed_rows import NO_TARGET
from dynbench.plugins import options_of
from dynbench.plugins.workloads import LanguageOptions
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.datasets.language import language_of
from dynbench.workloads.datasets.registry import load_dataset
from dynbench.workloads.held_out import evaluated_ids
from dynbench.workloads.language_model import language_model, logits_of
from dynbench.workloads.model_config import LANGUAGE_MODEL
from dynbench.workloads.packed import rows_of
from dynbench.workloads.samples import prepare_samples
from dynbench.workloads.saved_model import save_model
from dynbench.workloads.token_loss import summed_cross_entropy
from dynbench.workloads.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)

COUNTED_AT_ONCE = 1024
"""Samples whose tokens are counted at a time: all of them may not fit in memory."""


class CausalLanguageModel:
    """The texts of `workload.dataset`, or generated tokens, and the model of `workload.model` or `.size`.

    A sample weighs its target tokens: all but its first one. What pads is told by position alone, behind a sample's
    last token, where causal attention never looks back from a target; so no token has to stand for padding.

    Raises:
        DataError: a data file, vocabulary or model folder that cannot be used, or data without a target.
        HubError: a hub name that is neither cached nor reachable.
        UsageError: a tokenizer and a model that do not fit.
    """

    def __init__(self, config: Config) -> None:
        asked = config.workload
        model = language_model(asked)
        self.positions: int | None = model.positions
        settings = asked.model_copy(update={"max_length": min(asked.max_length, self.positions or asked.max_length)})
        samples = prepare_samples(language_of(load_dataset(settings)), settings, config.train.seed, classes=False)
        if settings.max_length < asked.max_length:
            reason = f"the model has {self.positions} positions"
            logger.warning(
                "workload.max_length: %d asked for, but %s; samples are cut to %d",
                *(asked.max_length, reason, settings.max_length),
            )
            samples.decide("workload.max_length", settings.max_length, reason)
        self.train: TokenisedData = _weighed(samples.train, samples.facts["train_source"])
        self.eval: TokenisedData | None = None if samples.eval is None else _weighed(samples.eval, "evaluation")
        self._source = model.source(samples.vocab_size)
        use_cache = options_of(asked, LanguageOptions).use_cache
        self.rows = rows_of(asked.layout, self._source.config, use_cache=use_cache)
        self._settings, self._has_texts = asked, samples.facts["tokenizer"] is not None
        self.facts: dict[str, object] = {
            **samples.facts,
            "fingerprint": self.train.fingerprint,
            "train": self.train.describe(),
            "eval": None if self.eval is None else self.eval.describe(),
            "vocab_size": samples.vocab_size,
            "unigram_perplexity": self._unigram_perplexity(config.train.eval_samples),
            "model": self._source.facts,
            "decisions": samples.decisions,
        }

    def _unigram_perplexity(self, evaluated: int) -> float | None:
        """Of the tokens that the validation's perplexity is over; None where nothing is evaluated."""
        if self.eval is None or evaluated == 0:
            return None
        return unigram_perplexity(self.eval, np.sort(evaluated_ids(len(self.eval), evaluated)))

    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write the model of a state, and the tokenizer of its texts, as transformers saves them."""
        tokenizer = load_tokenizer(self._settings, ends=True) if self._has_texts else None
        save_model(folder, self._source, LANGUAGE_MODEL, state, tokenizer)

    def build_model(self, seed: int) -> nn.Module:
        """The model on the CPU in fp32, in training mode; equal seeds give equal weights on every rank."""
        model = self.build_padded_model(seed)
        return model if self.rows is None else self.rows.prepare(model)

    def build_padded_model(self, seed: int) -> nn.Module:
        """The same, before it is made to take rows without padding."""
        return self._source.build(seed)

    def build_empty_model(self) -> nn.Module:
        """As `build_model`, without values, on the meta device."""
        model = self._source.build_empty()
        return model if self.rows is None else self.rows.prepare(model)

    def collate(self, data: TokenisedData, ids: IntArray, width: int) -> dict[str, Any]:
        """What the model takes of the samples `ids`, int64 on the CPU, and the `labels` that positions are to tell.

        Padded, both are [n, width]; else the row of `Rows.row` and as many labels. A last token of a text, and
        what pads, is labelled `NO_TARGET`.
        """
        if self.rows is not None:
            _, row = self.rows.row(data, ids)
            labels = row["input_ids"].roll(-1)
            labels[0, row["boundaries"].offsets[1:].long() - 1] = NO_TARGET
            return {**row, "labels": labels}
        rows, valid = data.padded(ids, width, 0)
        labels = np.full_like(rows, NO_TARGET)
        labels[:, :-1][valid[:, 1:]] = rows[:, 1:][valid[:, 1:]]
        return {"input_ids": torch.from_numpy(rows), "labels": torch.from_numpy(labels)}

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        """Cross entropy summed over the batch's target tokens."""
        logits = logits_of(model, **{name: value for name, value in batch.items() if name != "labels"})
        labels = batch["labels"].flatten()
        return summed_cross_entropy(logits.flatten(0, 1), labels)

    def eval_sums(self, model: nn.Module, batch: dict[str, Any]) -> dict[str, float]:
        """Summed cross entropy, and the target tokens that it is of."""
        return {
            "loss_sum": self.loss(model, batch).item(),
            "tokens": float((batch["labels"] != NO_TARGET).sum().item()),
        }


def _weighed(data: TokenisedData, source: object) -> TokenisedData:
    """The samples with a weight of their target tokens."""
    targets = data.lengths - 1
    if not targets.any():
        raise DataError(f"{source}: no sample has a second token: there is nothing to tell from the first")
    return data.weighed(targets)


def unigram_perplexity(data: TokenisedData, ids: IntArray) -> float | None:
    """The perplexity of a model that knows how often each target token of some samples comes, and nothing of the text.

    Args:
        data: the samples.
        ids: which of them, shape [n].

    Returns:
        None where they have no target.
    """
    counts, width = np.zeros(0, dtype=np.int64), int(data.lengths[ids].max())
    for begin in range(0, len(ids), COUNTED_AT_ONCE):
        rows, valid = data.padded(ids[begin : begin + COUNTED_AT_ONCE], width, 0)
        found = np.bincount(rows[:, 1:][valid[:, 1:]], minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    shares = counts[counts > 0] / counts.sum()
    return math.exp(-float((shares * np.log(shares)).sum())) if len(shares) else None
