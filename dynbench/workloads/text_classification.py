"""Classifying texts: one label per sample, cross entropy, accuracy."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynbench.config.schema import Config
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.datasets.base import TextSplit
from dynbench.workloads.datasets.registry import load_dataset
from dynbench.workloads.model_config import CLASSIFIER
from dynbench.workloads.packed import rows_of
from dynbench.workloads.pretrained_model import model_source
from dynbench.workloads.samples import Samples, prepare_samples
from dynbench.workloads.saved_model import save_model
from dynbench.workloads.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)


class TextClassification:
    """The samples of `workload.dataset` and the model of `workload.model`, saved with the names of its classes.

    Args:
        config: resolved configuration.
        classes: those of a trained model in order, see `load_dataset`.

    Raises:
        DataError: a data file, vocabulary or model folder that cannot be used.
        HubError: a hub name that is neither cached nor reachable.
        UsageError: a tokenizer and a model that do not fit.
    """

    def __init__(self, config: Config, classes: Sequence[str] = ()) -> None:
        settings = config.workload
        splits = load_dataset(settings, classes)
        samples = prepare_samples(splits, settings, config.train.seed)
        self._source = model_source(
            settings, samples.vocab_size, samples.pad_id, samples.num_labels, _end(samples.train)
        )
        if isinstance(splits.train, TextSplit):
            names = splits.train.classes or tuple(map(str, range(samples.num_labels)))
            self._source.config.id2label = dict(enumerate(names))
            self._source.config.label2id = {name: number for number, name in enumerate(names)}
        self.positions: int | None = self._source.positions
        _fit_to_model(samples, settings.max_length, self._source.positions)
        self._pad_id = samples.pad_id
        self.rows = rows_of(settings.layout, self._source.config)
        self._settings, self._has_texts = settings, samples.facts["tokenizer"] is not None
        self.train: TokenisedData = samples.train
        self.eval: TokenisedData | None = samples.eval
        self.facts: dict[str, object] = {
            **samples.facts,
            "fingerprint": samples.train.fingerprint,
            "train": samples.train.describe(),
            "eval": None if samples.eval is None else samples.eval.describe(),
            "vocab_size": samples.vocab_size,
            "num_labels": samples.num_labels,
            "model": self._source.facts,
            "decisions": samples.decisions,
        }

    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write the model of a state, and the tokenizer of its texts, as transformers saves them."""
        tokenizer = load_tokenizer(self._settings) if self._has_texts else None
        save_model(folder, self._source, CLASSIFIER, state, tokenizer)

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
        """What the model takes of the samples `ids`, int64 on the CPU, and their `labels`, [n].

        Padded, `input_ids` and `attention_mask`, both [n, width]; else the row of `Rows.row`, whose order labels
        follow.
        """
        if self.rows is not None:
            ids, row = self.rows.row(data, ids)
            return {**row, "labels": torch.from_numpy(data.labels[ids])}
        rows, valid = data.padded(ids, width, self._pad_id)
        return {
            "input_ids": torch.from_numpy(rows),
            "attention_mask": torch.from_numpy(valid).long(),
            "labels": torch.from_numpy(data.labels[ids]),
        }

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Tensor:
        """Cross entropy summed over the batch's samples."""
        return F.cross_entropy(_logits(model, batch), batch["labels"], reduction="sum")

    def eval_sums(self, model: nn.Module, batch: dict[str, Any]) -> dict[str, float]:
        """Summed cross entropy and number of right answers."""
        logits, labels = _logits(model, batch), batch["labels"]
        return {
            "loss_sum": F.cross_entropy(logits, labels, reduction="sum").item(),
            "correct": float((logits.argmax(dim=-1) == labels).sum().item()),
        }


def _logits(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """Logits of shape [n, classes]; half precision is raised to fp32 for the softmax, double stays double."""
    logits: Tensor = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _end(data: TokenisedData) -> int | None:
    """The token that ends every sample and stands nowhere else; None where there is none."""
    last = data.tokens[data.offsets[1:] - 1]
    alone = (last == last[0]).all() and int((data.tokens == last[0]).sum()) == len(data)
    return int(last[0]) if alone else None


def _fit_to_model(samples: Samples, max_length: int, positions: int | None) -> None:
    if positions is None or positions >= max_length:
        return
    reason = f"the model has {positions} positions"
    logger.warning("workload.max_length: %d asked for, but %s; samples are cut to %d", max_length, reason, positions)
    samples.truncate(positions)
    samples.decide("workload.max_length", positions, reason)
