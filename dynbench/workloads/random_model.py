"""DistilBERT's architecture with random weights (Sanh et al., 2019, arXiv:1910.01108)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import DistilBertConfig

from dynbench.config.schema import Workload
from dynbench.runs.phrase import Phrase
from dynbench.workloads.model_config import describe, fit_to_data

SMALL_SHAPE = {"dim": 256, "hidden_dim": 1024, "n_layers": 2, "n_heads": 4}
"""Forward and backward cost about 0.1 ms per padded token of one CPU core, so that padding shows in the step time."""


@dataclass(frozen=True)
class RandomModel:
    """A model initialised from a seed.

    Args:
        config: its shape.
        size: `workload.size` as decided, for records.
    """

    config: DistilBertConfig
    size: str

    @classmethod
    def shaped(cls, settings: Workload, vocab_size: int, pad_id: int, num_labels: int) -> RandomModel:
        """The shape of `workload.size`; `base` keeps distilbert-base-uncased's vocabulary unless the data need more."""
        shape = SMALL_SHAPE if settings.shape == "small" else {}
        if settings.shape == "base":
            vocab_size = max(vocab_size, DistilBertConfig().vocab_size)
        config = DistilBertConfig.from_dict({**shape, "vocab_size": vocab_size})
        fit_to_data(config, num_labels, pad_id, settings.dropout)
        return cls(config, settings.shape)

    @property
    def positions(self) -> int:
        """Longest padded sample, tokens."""
        return self.config.max_position_embeddings

    @property
    def facts(self) -> dict[str, object]:
        """Source and shape."""
        source = Phrase(f"random weights, DistilBERT {self.size}", "model.random", size=self.size)
        return {"source": source, "said": source.record(), **describe(self.config)}

    def build(self, seed: int) -> nn.Module:
        """A fresh model; the caller's random state is left as it was."""
        from transformers import DistilBertForSequenceClassification  # takes seconds, and launching builds no model

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: nn.Module = DistilBertForSequenceClassification(self.config)
        return model.train()
