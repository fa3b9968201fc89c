"""Models from the hub or a folder, with their weights or random ones."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import DistilBertConfig, PretrainedConfig

from dynbench.config.schema import Workload
from dynbench.errors import UsageError
from dynbench.runs.phrase import Phrase
from dynbench.workloads.first_step import Trial, fit_for_training
from dynbench.workloads.hub import cached_revision, load_stored, local_folder, quiet_libraries
from dynbench.workloads.model_config import (
    CLASSIFIER,
    EXPECTED,
    KEY,
    Kind,
    describe,
    fit_to_data,
    make_model,
    read_config,
    usable_positions,
)

SMALL_SHAPE = {"dim": 256, "hidden_dim": 1024, "n_layers": 2, "n_heads": 4}
"""Forward and backward cost about 0.1 ms per padded token of one CPU core, so that padding shows in the step time."""
CONFIG_HINT = "Name the folder of a text classifier's or language model's configuration, or set workload.size=small."
HUB_HINT = "Name a local folder (--model FOLDER), or use --weights random."
HEAD_PREFIXES = ("pre_classifier.", "classifier.", "score.")
"""Parameters of the classification head, which a model pretrained on plain text does not have."""


def model_source(
    settings: Workload, vocab_size: int, pad_id: int, num_labels: int, end_id: int | None = None
) -> ModelSource:
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
    if settings.weights == "pretrained":
        return pretrained_model(settings, vocab_size, pad_id, num_labels)
    if settings.shape == "model":
        return configured_model(settings, vocab_size, pad_id, num_labels, end_id)
    return random_model(settings, vocab_size, pad_id, num_labels)


def random_model(settings: Workload, vocab_size: int, pad_id: int, num_labels: int) -> ModelSource:
    """DistilBERT (Sanh et al., 2019, arXiv:1910.01108) in the shape of `workload.size`.

    `base` keeps distilbert-base-uncased's vocabulary unless the data need more.
    """
    size = settings.shape
    if size == "base":
        vocab_size = max(vocab_size, DistilBertConfig().vocab_size)
    config = DistilBertConfig.from_dict({**(SMALL_SHAPE if size == "small" else {}), "vocab_size": vocab_size})
    fit_to_data(config, num_labels, pad_id, settings.dropout)
    source = Phrase.of("model.random", size=size)

    def make() -> nn.Module:
        from transformers import DistilBertForSequenceClassification

        return DistilBertForSequenceClassification(config)

    return ModelSource(config, config.max_position_embeddings, facts_of(source, config), make)


@dataclass(frozen=True)
class ModelSource:
    """Where a workload's model comes from.

    Args:
        config: its configuration, fitted to the data.
        positions: longest padded sample that it takes, tokens; None for any.
        facts: source and shape, ready for JSON; see `facts_of`.
        make: the model on torch's default device, what is random in it from its random state; raises what its maker
            says.
    """

    config: PretrainedConfig
    positions: int | None
    facts: dict[str, object]
    make: Callable[[], nn.Module]

    def build(self, seed: int) -> nn.Module:
        """The model in fp32 and training mode; equal seeds give equal weights, the caller's random state stays."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make().float().train()

    def build_empty(self) -> nn.Module:
        """The same on the meta device, without values; makers read none there, and try nothing."""
        with torch.device("meta"):
            return self.make().float().train()


def facts_of(source: Phrase, config: PretrainedConfig, **more: object) -> dict[str, object]:
    """What records say of a model: its source, what else is known of that, and its shape."""
    return {"source": source, "said": source.record(), **more, **describe(config)}


logger = logging.getLogger(__name__)


def configured_model(
    settings: Workload, vocab_size: int, pad_id: int, num_labels: int, end_id: int | None
) -> ModelSource:
    """The shape that the configuration of `workload.model` describes; its vocabulary grows to the data's.

    A model that is made is tried on a sample of the data's shape.

    Raises:
        DataError: a local folder that holds no configuration.
        HubError: a hub name that is neither cached nor reachable.
        UsageError: a configuration of something else than a classifier of token ids; also when the model is made.
    """
    config, folder = read_config(settings.model, CONFIG_HINT), local_folder(KEY, settings.model)
    name, text, architecture = str(folder or settings.model), config.get_text_config(), config.model_type
    if getattr(text, "vocab_size", vocab_size) < vocab_size:
        logger.info("%s: the vocabulary of %d grows to the data's, %d", name, text.vocab_size, vocab_size)
        text.vocab_size = vocab_size
    fit_to_data(config, num_labels, pad_id, settings.dropout, end_id)
    positions = usable_positions(config, settings.model, CONFIG_HINT)
    longest = settings.max_length if positions is None else min(settings.max_length, positions)
    trial = Trial(longest, vocab_size, pad_id, num_labels, end_id, settings.dropout)

    def make() -> nn.Module:
        model = make_model(config, name, CONFIG_HINT).float()
        fit_for_training(model, f"{name} ({architecture})", trial)
        return model

    source = Phrase.of("model.configured", architecture=architecture, name=name)
    stored = None if folder is None else (folder / "config.json").read_bytes()
    digest = None if stored is None else hashlib.sha256(stored).hexdigest()[:16]
    return ModelSource(config, positions, facts_of(source, config, digest=digest), make)


def pretrained_model(settings: Workload, vocab_size: int, pad_id: int, num_labels: int) -> ModelSource:
    """The model of `workload.model`, of which only the configuration is read before it is made.

    A classification head that the stored weights lack is random.

    Raises:
        DataError: a local folder that holds no model; when it is made, no usable weights.
        HubError: a hub name, or weights, neither cached nor reachable.
        UsageError: no text encoder, or one whose vocabulary is smaller than the data's; when it is made, weights of
            another architecture.
    """
    config, folder = read_config(settings.model, HUB_HINT), local_folder(KEY, settings.model)
    name = str(folder or settings.model)
    if not hasattr(config, "vocab_size") or not hasattr(config, "max_position_embeddings"):
        raise UsageError(f"{KEY}: {settings.model} ({config.model_type}) is no text encoder", HUB_HINT)
    check_vocabulary(settings, config.vocab_size, vocab_size)
    fit_to_data(config, num_labels, pad_id, settings.dropout)

    def make() -> nn.Module:
        model, report = load_stored(KEY, name, weights_loader(config, CLASSIFIER), EXPECTED, HUB_HINT)
        _check_fit(name, report)
        return model

    source = Phrase.of("model.pretrained", name=name)
    facts = facts_of(source, config, revision=cached_revision(name) if folder is None else None)
    return ModelSource(config, usable_positions(config, settings.model, HUB_HINT), facts, make)


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
            return make_model(config, where, HUB_HINT, kind), {
                "missing_keys": set(),
                "mismatched_keys": set(),
            }
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
            HUB_HINT,
        )
    return fresh
