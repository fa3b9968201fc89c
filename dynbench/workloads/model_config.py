"""What all kinds of models do with a transformers configuration, by its own names for things."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PretrainedConfig

from dynbench.errors import UsageError
from dynbench.workloads.hub import first_line, load_stored

logger = logging.getLogger(__name__)

KEY = "workload.model"
EXPECTED = "a model saved by transformers (config.json, model.safetensors)"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a model is to be.

    Args:
        name: for messages.
        auto: the class of transformers that makes it of a configuration.
    """

    name: str
    auto: str

    def auto_class(self) -> Any:
        """That class; importing it takes half a second, and only some models need it."""
        return getattr(import_module("transformers"), self.auto)


CLASSIFIER = Kind("text classifier", "AutoModelForSequenceClassification")
LANGUAGE_MODEL = Kind("causal language model", "AutoModelForCausalLM")
IMAGE_CLASSIFIER = Kind("image classifier", "AutoModelForImageClassification")

OTHER_HEADS = "qa_"
"""How the names of settings begin that a classifier does not read."""


def read_config(model: str, ways_out: str) -> PretrainedConfig:
    """The configuration of `workload.model`; code that a folder brings along is never run.

    Raises:
        DataError: a local folder that holds none.
        HubError: a hub name that is neither cached nor reachable.
    """

    def load(where: str, local_only: bool) -> PretrainedConfig:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            where, local_files_only=local_only, trust_remote_code=False
        )
        return config

    return load_stored(KEY, model, load, EXPECTED, ways_out)


def fit_to_data(
    config: PretrainedConfig, num_labels: int, pad_id: int, dropout: float | None, end_id: int | None = None
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
    set_rates(config, dropout)


def set_rates(config: PretrainedConfig, dropout: float | None) -> None:
    """Set every dropout probability unless `dropout` is None; what is of no use in training is switched off.

    Args:
        config: changed in place.
        dropout: `workload.dropout`.
    """
    if getattr(config, "use_cache", False):
        config.use_cache = False
    for key, rate in _rates(config, layers=True).items():
        if rate:
            logger.warning("%s: %s skips whole layers, which would have no gradient; it is set to 0", key, rate)
            setattr(config, key, 0.0)
    for key in dropouts(config) if dropout is not None else ():
        setattr(config, key, dropout)


def dropouts(config: PretrainedConfig) -> dict[str, float | None]:
    """The dropout probabilities by their name in the configuration; None where another one holds."""
    return _rates(config, layers=False)


def make_model(config: PretrainedConfig, name: str, ways_out: str, kind: Kind = CLASSIFIER) -> nn.Module:
    """A model of this configuration, with weights from torch's random state, on its default device.

    Args:
        config: of any architecture.
        name: where it is from, for messages.
        ways_out: the hint of the error.
        kind: what it is to be.

    Raises:
        UsageError: there is no such model, or the configuration contradicts itself.
    """
    try:
        model: nn.Module = kind.auto_class().from_config(config, trust_remote_code=False)
    except MemoryError:
        raise
    except Exception as error:  # each architecture has ways of its own to say that a configuration cannot be built
        if "memory" in str(error).lower():
            raise
        reason = first_line(error).partition(" for this kind of AutoModel")[0]
        raise UsageError(f"{KEY}: {name} ({config.model_type}) makes no {kind.name}: {reason}", ways_out) from error
    return model


def usable_positions(config: PretrainedConfig, name: str, ways_out: str) -> int | None:
    """Longest padded sample that a model of this configuration takes, tokens; None for any.

    RoBERTa's kin number positions from behind that of the padding, so that as many of the table's rows are lost.

    Raises:
        UsageError: as `make_model`.
    """
    with torch.device("meta"):
        shell = make_model(config, name, ways_out)
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
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


def describe(config: PretrainedConfig) -> dict[str, object]:
    """Shape of the model, ready for JSON; None for what its architecture does not have."""
    text = config.get_text_config()
    return {
        "architecture": config.model_type,
        "layers": getattr(text, "num_hidden_layers", None),
        "dim": getattr(text, "hidden_size", None),
        "heads": getattr(text, "num_attention_heads", None),
        "vocab_size": getattr(text, "vocab_size", None),
        "positions": getattr(text, "max_position_embeddings", None),
        "classes": config.num_labels,
        "dropout": dropouts(config),
    }


def _rates(config: PretrainedConfig, *, layers: bool) -> dict[str, float | None]:
    """Probabilities of dropping: of whole layers, or of single values."""
    return {
        key: value
        for key, value in config.to_dict().items()
        if "drop" in key
        and not key.startswith(OTHER_HEADS)
        and (value is None or (isinstance(value, int | float) and not isinstance(value, bool)))
        and layers is ("layerdrop" in key or "layer_drop" in key or "drop_path" in key)
    }
