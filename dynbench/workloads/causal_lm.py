"""Language modelling: the next token of every text, cross entropy over the target tokens, perplexity.

The model is one of our sizes, GPT-2's architecture or one with RMSNorm, RoPE and SwiGLU, or any causal language model
of random or stored weights.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, LlamaConfig, PretrainedConfig

from dynbench.config.schema import Config, Workload
from dynbench.errors import DataError, UsageError
from dynbench.kernels.packed_attention import NO_TARGET
from dynbench.plugins import WORKLOADS, options_of
from dynbench.plugins.workloads import LanguageOptions
from dynbench.runs.phrase import Phrase
from dynbench.workloads import models
from dynbench.workloads.batches import rows_of
from dynbench.workloads.data import IntArray, TokenisedData, evaluated_ids
from dynbench.workloads.datasets.base import load_dataset
from dynbench.workloads.datasets.generated import language_of
from dynbench.workloads.hub import quiet_libraries
from dynbench.workloads.samples import prepare_samples
from dynbench.workloads.token_loss import at_least_fp32, summed_cross_entropy
from dynbench.workloads.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)

WAYS_OUT = "Name a language model (--model gpt2, or a folder), or set workload.weights=random and workload.size=tiny."
GPT2_VOCABULARY, ROPE_VOCABULARY = 50_257, 10_000
GPT2_SHAPES = {"tiny": (128, 4, 4), "gpt2-62m": (640, 6, 10)}
"""Width, layers, heads."""
ROPE_SHAPES = {
    "small": (768, 3072, 12, 12),
    "medium": (1024, 4096, 24, 16),
    "large": (1280, 5120, 36, 20),
    "xl-2025": (1600, 6400, 48, 25),
    "xl-2026": (2560, 10240, 32, 32),
}
"""Width, inner width, layers, heads."""
TRIED_TOKENS = 8
CAUSAL_TOLERANCE = 1e-3
"""Of the logits."""


COUNTED_AT_ONCE = 1024
"""Samples whose tokens are counted at a time: all of them may not fit in memory."""


class CausalLanguageModel(models.BuildsModel):
    """The texts of `workload.dataset`, or generated tokens, and the model of `workload.model` or `.size`.

    A sample weighs its target tokens: all but its first. What pads is known by its position alone, behind a sample's
    last token, where causal attention never looks back from a target; so no token has to stand for padding.

    Raises:
        DataError: a data file, vocabulary or model folder that cannot be used, or data without a target.
        HubError: a hub name that is neither cached nor reachable.
        UsageError: a tokenizer and a model that do not fit.
    """

    def __init__(self, config: Config) -> None:
        given = config.workload
        model = language_model(given)
        self.positions: int | None = model.positions
        settings = given.model_copy(update={"max_length": min(given.max_length, self.positions or given.max_length)})
        samples = prepare_samples(language_of(load_dataset(settings)), settings, config.train.seed, classes=False)
        samples.limit_length(given.max_length, self.positions)
        self.train: TokenisedData = _weighed(samples.train, samples.sources["train_source"])
        self.eval: TokenisedData | None = None if samples.eval is None else _weighed(samples.eval, "evaluation")
        self._source = model.source(samples.vocab_size)
        use_cache = options_of(given, LanguageOptions).use_cache
        self.rows = rows_of(given.layout, self._source.config, use_cache=use_cache)
        self._settings, self._has_texts = given, samples.has_texts
        samples.train, samples.eval = self.train, self.eval
        self.facts: dict[str, object] = samples.facts(
            self._source.facts,
            vocab_size=samples.vocab_size,
            unigram_perplexity=self._unigram_perplexity(config.train.eval_samples),
        )

    def _unigram_perplexity(self, evaluated: int) -> float | None:
        """Of the tokens that the validation's perplexity is over; None where nothing is evaluated."""
        if self.eval is None or evaluated == 0:
            return None
        return unigram_perplexity(self.eval, np.sort(evaluated_ids(len(self.eval), evaluated)))

    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write the model of a state, and the tokenizer of its texts, as transformers saves them."""
        tokenizer = load_tokenizer(self._settings, ends=True) if self._has_texts else None
        models.save_model(folder, self._source, models.LANGUAGE_MODEL, state, tokenizer)

    def collate(self, data: TokenisedData, ids: IntArray, width: int) -> dict[str, Any]:
        """What the model takes of the samples `ids`, int64 on the CPU, and the `labels` that positions are to predict.

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
        raise DataError(f"{source}: no sample has a second token: there is nothing to predict from the first")
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


@dataclass(frozen=True)
class LanguageModel:
    """A model before it is known how many tokens the data have.

    Args:
        settings: the configuration's `workload` section.
        config: of the model; its vocabulary is still to be fitted.
        positions: longest padded sample that it takes, tokens; None for any.
        stored: where the configuration was read; None for one of our sizes.
    """

    settings: Workload
    config: PretrainedConfig
    positions: int | None
    stored: models.StoredModel | None

    def source(self, vocab_size: int) -> models.ModelSource:
        """The model for data whose token ids are below `vocab_size`.

        Raises:
            UsageError: pretrained weights that know fewer tokens; when it is made, a model whose logits depend on later
                tokens, or weights of another architecture.
        """
        settings, stored, text = self.settings, self.stored, self.config.get_text_config()
        known = int(getattr(text, "vocab_size", vocab_size))
        if stored is not None and settings.weights == "pretrained":
            stored.check_vocabulary(known, vocab_size)
        else:
            text.vocab_size = max(known, vocab_size)

        def make() -> nn.Module:
            if stored is None:
                return models.make_model(self.config, settings.shape, WAYS_OUT, models.LANGUAGE_MODEL)
            return causal(stored.make(), stored.name, settings.dropout)

        phrase = Phrase.of("model.language", architecture=self.config.model_type, size=settings.shape)
        facts = models.facts_of(phrase, self.config) if stored is None else stored.facts()
        del facts["classes"]
        return models.ModelSource(self.config, self.positions, facts, make)


def language_model(settings: Workload) -> LanguageModel:
    """The model that `workload.weights`, `.model` and `.size` mean, with `workload.dropout` applied.

    Raises:
        DataError: a local folder that holds no configuration.
        HubError: a hub name that is neither cached nor reachable.
    """
    quiet_libraries()
    stored = models.stored_model(settings, models.LANGUAGE_MODEL, WAYS_OUT) if settings.reads_model else None
    if stored is None:
        config = shape_config(settings.shape, int(WORKLOADS[settings.name].sizes[settings.shape].positions or 0))
    else:
        config = stored.config
    # Padding comes last, where nothing looks at it: no token means it, and the end of a text is one like any other.
    config.get_text_config().pad_token_id = None
    models.set_rates(config, settings.dropout)
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return LanguageModel(settings, config, positions if isinstance(positions, int) and positions > 0 else None, stored)


def shape_config(shape: str, positions: int) -> PretrainedConfig:
    """The configuration of one of our sizes; `tiny` has as many tokens as the data."""
    common: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    if shape in GPT2_SHAPES:
        width, layers, heads = GPT2_SHAPES[shape]
        vocab_size = 1 if shape == "tiny" else GPT2_VOCABULARY
        sizes: dict[str, Any] = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": positions}
        # GPT-2's own GELU by one kernel, and no dropout of attention, so that neither keeps further copies for the
        # backward pass: a third of the memory of a step.
        lean: dict[str, Any] = {"activation_function": "gelu_pytorch_tanh", "attn_pdrop": 0.0}
        return GPT2Config(vocab_size=vocab_size, tie_word_embeddings=True, **sizes, **lean, **common)
    width, inner, layers, heads = ROPE_SHAPES[shape]
    return LlamaConfig(
        vocab_size=ROPE_VOCABULARY,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        **common,
    )


def causal(model: nn.Module, name: str, dropout: float | None) -> nn.Module:
    """The model with the dropout applied, once it has been tried on a few tokens.

    Args:
        model: on the CPU, changed in place.
        name: for messages.
        dropout: `workload.dropout`.

    Raises:
        UsageError: as `models.fit_for_training`; or its logits depend on later tokens.
    """

    def loss() -> Tensor:
        tokens = torch.arange(TRIED_TOKENS)[None] % int(getattr(model.config, "vocab_size", TRIED_TOKENS))
        with torch.no_grad():
            model.eval()
            whole, half = logits_of(model, tokens), logits_of(model, tokens[:, : TRIED_TOKENS // 2])
        if (whole[:, : half.shape[1]] - half).abs().max() > CAUSAL_TOLERANCE * half.abs().max():
            raise UsageError(
                f"{models.KEY}: {name} looks at later tokens to predict the next one: no causal language model",
                WAYS_OUT,
            )
        return F.cross_entropy(logits_of(model.train(), tokens).flatten(0, 1), tokens.flatten())

    return models.fit_for_training(model, name, loss, "be trained on token ids alone", WAYS_OUT, dropout)


def logits_of(model: nn.Module, input_ids: Tensor, **more: Any) -> Tensor:
    """Logits of shape [n, L, vocabulary], at least fp32."""
    return at_least_fp32(model(input_ids=input_ids, **more).logits)
