"""The architecture of a transformers configuration with random weights."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PretrainedConfig

from dynbench.config.schema import Workload
from dynbench.runs.phrase import Phrase
from dynbench.workloads.first_step import Trial, fit_for_training
from dynbench.workloads.model_config import describe, fit_to_data, make_model, usable_positions
from dynbench.workloads.stored_config import read_config

logger = logging.getLogger(__name__)

WAYS_OUT = "Name the folder of a text classifier's or language model's configuration, or set workload.size=small."


@dataclass(frozen=True)
class ConfiguredModel:
    """A model made from a configuration and a seed.

    Args:
        config: the stored configuration, fitted to the data.
        name: hub name or local folder.
        digest: of the stored file, 16 hex digits; None for a hub name.
        positions: longest padded sample, tokens; None for any.
        trial: a sample of the data's shape, to try the model on.
    """

    config: PretrainedConfig
    name: str
    digest: str | None
    positions: int | None
    trial: Trial

    @classmethod
    def find(
        cls, settings: Workload, vocab_size: int, pad_id: int, num_labels: int, end_id: int | None
    ) -> ConfiguredModel:
        """The shape that the configuration of `workload.model` describes; its vocabulary grows to the data's.

        Raises:
            DataError: a local folder that holds no configuration.
            HubError: a hub name that is neither cached nor reachable.
            UsageError: a configuration of something else than a classifier of token ids.
        """
        stored = read_config(settings.model, WAYS_OUT)
        config, text = stored.config, stored.config.get_text_config()
        if getattr(text, "vocab_size", vocab_size) < vocab_size:
            logger.info("%s: the vocabulary of %d grows to the data's, %d", stored.name, text.vocab_size, vocab_size)
            text.vocab_size = vocab_size
        fit_to_data(config, num_labels, pad_id, settings.dropout, end_id)
        positions = usable_positions(config, settings.model, WAYS_OUT)
        longest = settings.max_length if positions is None else min(settings.max_length, positions)
        trial = Trial(longest, vocab_size, pad_id, num_labels, end_id, settings.dropout)
        return cls(config, stored.name, _digest(stored.name), positions, trial)

    @property
    def facts(self) -> dict[str, object]:
        """Source and shape."""
        source = Phrase(
            f"random weights, {self.config.model_type} as configured in {self.name}",
            "model.configured",
            architecture=self.config.model_type,
            name=self.name,
        )
        return {"source": source, "said": source.record(), "digest": self.digest, **describe(self.config)}

    def build(self, seed: int) -> nn.Module:
        """A fresh model, tried on a sample of the data's shape; the caller's random state is left as it was.

        Raises:
            UsageError: it cannot be built, or cannot classify token ids.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = make_model(self.config, self.name, WAYS_OUT).float()
            fit_for_training(model, f"{self.name} ({self.config.model_type})", self.trial)
        return model.train()


def _digest(name: str) -> str | None:
    file = Path(name) / "config.json"
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else None
