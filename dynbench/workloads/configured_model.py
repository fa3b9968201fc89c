"""The architecture of a transformers configuration with random weights."""

from __future__ import annotations

import hashlib
import logging

from torch import nn

from dynbench.config.schema import Workload
from dynbench.runs.phrase import Phrase
from dynbench.workloads.first_step import Trial, fit_for_training
from dynbench.workloads.hub import local_folder
from dynbench.workloads.model_config import KEY, fit_to_data, make_model, read_config, usable_positions
from dynbench.workloads.model_source import ModelSource, facts_of

logger = logging.getLogger(__name__)

WAYS_OUT = "Name the folder of a text classifier's or language model's configuration, or set workload.size=small."


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
    config, folder = read_config(settings.model, WAYS_OUT), local_folder(KEY, settings.model)
    name, text, architecture = str(folder or settings.model), config.get_text_config(), config.model_type
    if getattr(text, "vocab_size", vocab_size) < vocab_size:
        logger.info("%s: the vocabulary of %d grows to the data's, %d", name, text.vocab_size, vocab_size)
        text.vocab_size = vocab_size
    fit_to_data(config, num_labels, pad_id, settings.dropout, end_id)
    positions = usable_positions(config, settings.model, WAYS_OUT)
    longest = settings.max_length if positions is None else min(settings.max_length, positions)
    trial = Trial(longest, vocab_size, pad_id, num_labels, end_id, settings.dropout)

    def make() -> nn.Module:
        model = make_model(config, name, WAYS_OUT).float()
        fit_for_training(model, f"{name} ({architecture})", trial)
        return model

    source = Phrase.of("model.configured", architecture=architecture, name=name)
    stored = None if folder is None else (folder / "config.json").read_bytes()
    digest = None if stored is None else hashlib.sha256(stored).hexdigest()[:16]
    return ModelSource(config, positions, facts_of(source, config, digest=digest), make)
