"""Pretrained weights from a local folder or by hub name."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import nn
from transformers import PretrainedConfig

from dynbench.config.schema import Workload
from dynbench.errors import UsageError
from dynbench.runs.phrase import Phrase
from dynbench.workloads.hub import cached_revision, load_stored, local_folder
from dynbench.workloads.model_config import (
    CLASSIFIER,
    EXPECTED,
    KEY,
    Kind,
    fit_to_data,
    make_model,
    read_config,
    usable_positions,
)
from dynbench.workloads.model_source import ModelSource, facts_of

logger = logging.getLogger(__name__)

WAYS_OUT = "Name a local folder (--model FOLDER), or use --weights random."

HEAD_PREFIXES = ("pre_classifier.", "classifier.", "score.")
"""Parameters of the classification head, which a model pretrained on plain text does not have."""


def pretrained_model(settings: Workload, vocab_size: int, pad_id: int, num_labels: int) -> ModelSource:
    """The model of `workload.model`, of which only the configuration is read before it is made.

    A classification head that the stored weights lack is random.

    Raises:
        DataError: a local folder that holds no model; when it is made, no usable weights.
        HubError: a hub name, or weights, neither cached nor reachable.
        UsageError: no text encoder, or one whose vocabulary is smaller than the data's; when it is made, weights of
            another architecture.
    """
    config, folder = read_config(settings.model, WAYS_OUT), local_folder(KEY, settings.model)
    name = str(folder or settings.model)
    if not hasattr(config, "vocab_size") or not hasattr(config, "max_position_embeddings"):
        raise UsageError(f"{KEY}: {settings.model} ({config.model_type}) is no text encoder", WAYS_OUT)
    check_vocabulary(settings, config.vocab_size, vocab_size)
    fit_to_data(config, num_labels, pad_id, settings.dropout)

    def make() -> nn.Module:
        model, report = load_stored(KEY, name, weights_loader(config, CLASSIFIER), EXPECTED, WAYS_OUT)
        _check_fit(name, report)
        return model

    source = Phrase.of("model.pretrained", name=name)
    facts = facts_of(source, config, revision=cached_revision(name) if folder is None else None)
    return ModelSource(config, usable_positions(config, settings.model, WAYS_OUT), facts, make)


def check_vocabulary(settings: Workload, known: int, vocab_size: int) -> None:
    """Refuse data with token ids that the model has no embedding for.

    Args:
        settings: the configuration's `workload` section.
        known: the model's vocabulary.
        vocab_size: token ids of the data are below it.

    Raises:
        UsageError: they are more.
    """
    if known < vocab_size:
        raise UsageError(
            f"{KEY}: {settings.model} knows {known} tokens, the data have {vocab_size}",
            "Use the model's own tokenizer (workload.tokenizer: null)."
            if settings.tokenizer is not None
            else f"Use a model that knows {vocab_size} tokens or more, or --weights random.",
        )


Loaded = tuple[nn.Module, dict[str, set[object]]]
"""A model, and which of its parameters were missing or did not fit."""


def weights_loader(config: PretrainedConfig, kind: Kind) -> Callable[[str, bool], Loaded]:
    """What loads a model with its stored weights, of a place and whether that has to be local; onto meta without."""

    def load(where: str, local_only: bool) -> Loaded:
        if torch.empty(0).is_meta:
            return make_model(config, where, WAYS_OUT, kind), {"missing_keys": set(), "mismatched_keys": set()}
        model, report = kind.auto_class().from_pretrained(
            where,
            config=config,
            local_files_only=local_only,
            trust_remote_code=False,
            weights_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        return model, report

    return load


def _check_fit(name: str, report: dict[str, set[object]]) -> None:
    """Only a classification head may be missing or of another shape."""
    if check_weights(name, report, HEAD_PREFIXES):
        logger.info("the classification head of %s starts from random weights", name)


def check_weights(name: str, report: dict[str, set[object]], heads: tuple[str, ...] = ()) -> list[str]:
    """Refuse weights that lack parameters of the model; those whose names begin with `heads` are returned.

    Raises:
        UsageError: they do.
    """
    mismatched = (entry[0] if isinstance(entry, tuple) else entry for entry in report["mismatched_keys"])
    fresh = sorted(str(key) for key in {*report["missing_keys"], *mismatched})
    body = [key for key in fresh if not key.startswith(heads)] if heads else fresh
    if body:
        raise UsageError(
            f"{KEY}: the weights of {name} do not fit its configuration: {len(body)} parameters are missing "
            f"or of another shape, {body[0]} first",
            WAYS_OUT,
        )
    return fresh
