"""Classifying texts: one label per sample, cross entropy, accuracy.

The model is DistilBERT of random weights, or any architecture, of random or stored weights. Where nobody knows that it
classifies token ids, it is tried on the data's shape before many ranks wait for what cannot work.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DistilBertConfig, PretrainedConfig

from dynbench.config.schema import Config, Workload
from dynbench.errors import UsageError
from dynbench.runs.phrase import Phrase
from dynbench.workloads import models
from dynbench.workloads.batches import rows_of
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.datasets.base import TextSplit, load_dataset
from dynbench.workloads.hub import quiet_libraries
from dynbench.workloads.samples import prepare_samples
from dynbench.workloads.token_loss import at_least_fp32, grade
from dynbench.workloads.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)

SMALL_SHAPE = {"dim": 256, "hidden_dim": 1024, "n_layers": 2, "n_heads": 4}
"""Forward and backward cost about 0.1 ms per padded token of one CPU core, so that padding shows in the step time."""
CONFIG_HINT = "Name the folder of a text classifier's or language model's configuration, or set workload.size=small."
WEIGHTS_HINT = "Name a local folder (--model FOLDER), or use --weights random."
LONG = 8
"""Tokens of the sample that the gradients are tried on; the one beside it has half."""
PADDING_TOLERANCE = 1e-3
"""Of the logits."""


class TextClassification(models.BuildsModel):
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
            models.name_classes(self._source.config, splits.train.classes or [*map(str, range(samples.num_labels))])
        self.positions: int | None = self._source.positions
        samples.limit_length(settings.max_length, self.positions)
        self._pad_id = samples.pad_id
        self.rows = rows_of(settings.layout, self._source.config)
        self._settings, self._has_texts = settings, samples.has_texts
        self.train: TokenisedData = samples.train
        self.eval: TokenisedData | None = samples.eval
        sizes = {"vocab_size": samples.vocab_size, "num_labels": samples.num_labels}
        self.facts: dict[str, object] = samples.facts(self._source.facts, **sizes)

    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write the model of a state, and the tokenizer of its texts, as transformers saves them."""
        tokenizer = load_tokenizer(self._settings) if self._has_texts else None
        models.save_model(folder, self._source, models.CLASSIFIER, state, tokenizer)

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
        loss, right = grade(_logits(model, batch), batch["labels"])
        return {"loss_sum": loss.item(), "correct": float(right.item())}


def _logits(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """Logits of shape [n, classes], at least fp32."""
    return at_least_fp32(model(**{name: value for name, value in batch.items() if name != "labels"}).logits)


def _end(data: TokenisedData) -> int | None:
    """The token that ends every sample and stands nowhere else; None where there is none."""
    last = data.tokens[data.offsets[1:] - 1]
    alone = (last == last[0]).all() and int((data.tokens == last[0]).sum()) == len(data)
    return int(last[0]) if alone else None


def model_source(
    settings: Workload, vocab_size: int, pad_id: int, num_labels: int, end_id: int | None = None
) -> models.ModelSource:
    """The model that `workload.weights`, `.model` and `.size` mean, with `workload.dropout` applied.

    Args:
        settings: the configuration's `workload` section.
        vocab_size: token ids of the data are below it.
        pad_id: token id of the padding.
        num_labels: classes of the data.
        end_id: token that ends every sample and stands nowhere else, where there is one.

    Raises:
        DataError: a local folder that holds no model.
        HubError: a hub name that is neither cached nor reachable.
        UsageError: a model that cannot take the data's tokens.
    """
    quiet_libraries()
    size = settings.shape
    if not settings.reads_model:
        return _random_model(size, vocab_size, pad_id, num_labels, settings.dropout)
    pretrained = settings.weights == "pretrained"
    stored = models.stored_model(settings, models.CLASSIFIER, WEIGHTS_HINT if pretrained else CONFIG_HINT)
    config, text = stored.config, stored.config.get_text_config()
    if pretrained:
        if not hasattr(config, "vocab_size") or not hasattr(config, "max_position_embeddings"):
            raise UsageError(f"{models.KEY}: {settings.model} ({config.model_type}) is no text encoder", WEIGHTS_HINT)
        stored.check_vocabulary(config.vocab_size, vocab_size)
        end_id = None
    elif getattr(text, "vocab_size", vocab_size) < vocab_size:
        logger.info("%s: the vocabulary of %d grows to the data's, %d", stored.name, text.vocab_size, vocab_size)
        text.vocab_size = vocab_size
    _fit_to_data(config, num_labels, pad_id, settings.dropout, end_id)
    positions = _usable_positions(stored)
    longest = settings.max_length if positions is None else min(settings.max_length, positions)
    trial = Trial(longest, vocab_size, pad_id, num_labels, end_id, settings.dropout)

    def make() -> nn.Module:
        model = stored.make()
        return model if pretrained else trial.passed(model, f"{stored.name} ({config.model_type})")

    return models.ModelSource(config, positions, stored.facts(), make)


def _random_model(
    size: str, vocab_size: int, pad_id: int, num_labels: int, dropout: float | None
) -> models.ModelSource:
    """DistilBERT (Sanh et al., 2019, arXiv:1910.01108) in the shape of `workload.size`.

    `base` keeps distilbert-base-uncased's vocabulary unless the data need more.
    """
    if size == "base":
        vocab_size = max(vocab_size, DistilBertConfig().vocab_size)
    config = DistilBertConfig.from_dict({**(SMALL_SHAPE if size == "small" else {}), "vocab_size": vocab_size})
    _fit_to_data(config, num_labels, pad_id, dropout, None)

    def make() -> nn.Module:
        from transformers import DistilBertForSequenceClassification

        model: nn.Module = DistilBertForSequenceClassification(config)
        return model

    facts = models.facts_of(Phrase.of("model.random", size=size), config)
    return models.ModelSource(config, config.max_position_embeddings, facts, make)


def _fit_to_data(
    config: PretrainedConfig, num_labels: int, pad_id: int, dropout: float | None, end_id: int | None
) -> None:
    """Set classes and padding, and every dropout probability unless `dropout` is None.

    Args:
        config: changed in place.
        num_labels: classes.
        pad_id: token id of the padding.
        dropout: `workload.dropout`.
        end_id: the token that ends every sample and stands nowhere else, where there is one; encoder-decoder models
            classify by it.
    """
    config.num_labels = num_labels
    for part in {id(part): part for part in (config, config.get_text_config())}.values():
        part.pad_token_id = pad_id
    if config.is_encoder_decoder:
        config.eos_token_id = config.eos_token_id if end_id is None else end_id
        if getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = pad_id
    models.set_rates(config, dropout)


def _usable_positions(stored: models.StoredModel) -> int | None:
    """Longest padded sample that a model of this configuration takes, tokens; None for any.

    RoBERTa's kin number positions from behind that of the padding, so that as many of the table's rows are lost.

    Raises:
        UsageError: as `make_model`.
    """
    with torch.device("meta"):
        shell = models.make_model(stored.config, stored.settings.model, stored.ways_out)
    positions = getattr(stored.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    lost = [
        module.padding_idx + 1
        for name, module in shell.named_modules()
        if name.endswith("embeddings.position_embeddings")
        and isinstance(getattr(module, "padding_idx", None), int)
        and getattr(module, "weight", torch.empty(0)).shape[:1] == (positions,)
    ]
    return positions - max(lost, default=0)


@dataclass(frozen=True, slots=True)
class Trial:
    """What the data's batches look like.

    Args:
        longest: longest padded sample, tokens.
        vocab_size: token ids are below it.
        pad_id: token id of the padding.
        num_labels: classes.
        end_id: token that ends every sample, where there is one.
        dropout: `workload.dropout`.
    """

    longest: int
    vocab_size: int
    pad_id: int
    num_labels: int
    end_id: int | None
    dropout: float | None

    def batch(self, *lengths: int) -> dict[str, Tensor]:
        """Samples of these lengths, padded: `input_ids` and `attention_mask`, both [n, L]."""
        words = [word for word in range(min(self.vocab_size, 64)) if word not in (self.pad_id, self.end_id)]
        rows = torch.full((len(lengths), max(lengths)), self.pad_id)
        for row, length in zip(rows, lengths, strict=True):
            row[:length] = torch.tensor((words * length)[:length])
            row[length - 1] = row[length - 1] if self.end_id is None else self.end_id
        return {
            "input_ids": rows,
            "attention_mask": (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long(),
        }

    def passed(self, model: nn.Module, name: str) -> nn.Module:
        """The model, on the CPU, with the dropout applied, once it has classified such batches.

        Raises:
            UsageError: as `fit_for_training`.
        """
        longest = max(2, min(LONG, self.longest))
        short = max(2, longest // 2)

        def loss() -> Tensor:
            with torch.no_grad():
                model.eval()
                self._logits(model, self.longest)
                alone, padded = self._logits(model, short)[0], self._logits(model, longest, short)[1]
                model.train()
                first, again = self._logits(model, longest, short), self._logits(model, longest, short)
            if self.dropout == 0 and not torch.equal(first, again):
                logger.warning(
                    "%s: two passes differ in spite of workload.dropout 0; so will losses of the same samples", name
                )
            if (alone - padded).abs().max() > PADDING_TOLERANCE * alone.abs().max():
                logger.warning(
                    "%s: padding changes what a sample gives, so that losses depend on who pads how much", name
                )
            logits = self._logits(model, longest, short)
            return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))

        cannot = f"classify samples of {short} to {self.longest} token ids"
        return models.fit_for_training(model, name, loss, cannot, models.OTHER_ARCHITECTURE, self.dropout)

    def _logits(self, model: nn.Module, *lengths: int) -> Tensor:
        logits = getattr(model(**self.batch(*lengths)), "logits", None)
        expected = (len(lengths), self.num_labels)
        if not isinstance(logits, Tensor) or logits.shape != expected:
            shape = "none" if logits is None else f"of shape {list(logits.shape)}"
            raise UsageError(
                f"{models.KEY}: {type(model).__name__} gives logits {shape}; expected {list(expected)}",
                models.OTHER_ARCHITECTURE,
            )
        return logits
