"""DistilBERT's architecture with random weights (Sanh et al., 2019, arXiv:1910.01108)."""

from __future__ import annotations

from torch import nn
from transformers import DistilBertConfig

from dynbench.config.schema import Workload
from dynbench.runs.phrase import Phrase
from dynbench.workloads.model_config import fit_to_data
from dynbench.workloads.model_source import ModelSource, facts_of

SMALL_SHAPE = {"dim": 256, "hidden_dim": 1024, "n_layers": 2, "n_heads": 4}
"""Forward and backward cost about 0.1 ms per padded token of one CPU core, so that padding shows in the step time."""


def random_model(settings: Workload, vocab_size: int, pad_id: int, num_labels: int) -> ModelSource:
    """The shape of `workload.size`; `base` keeps distilbert-base-uncased's vocabulary unless the data need more."""
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
