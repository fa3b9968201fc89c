"""What both kinds of models do with a transformers configuration."""

from __future__ import annotations

from transformers import PretrainedConfig

DROPOUT_KEYS = (
    *("dropout", "attention_dropout", "seq_classif_dropout"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
)
"""DistilBERT's names, then BERT's."""


def fit_to_data(config: PretrainedConfig, num_labels: int, pad_id: int, dropout: float | None) -> None:
    """Set classes and padding, and every dropout probability unless `dropout` is None."""
    config.num_labels = num_labels
    config.pad_token_id = pad_id
    for key in dropouts(config) if dropout is not None else ():
        setattr(config, key, dropout)


def dropouts(config: PretrainedConfig) -> dict[str, float | None]:
    """The dropout probabilities by their name in the configuration."""
    return {key: getattr(config, key) for key in DROPOUT_KEYS if hasattr(config, key)}


def describe(config: PretrainedConfig) -> dict[str, object]:
    """Shape of the model, ready for JSON."""
    return {
        "architecture": config.model_type,
        "layers": config.num_hidden_layers,
        "dim": config.hidden_size,
        "heads": config.num_attention_heads,
        "vocab_size": config.vocab_size,
        "positions": config.max_position_embeddings,
        "classes": config.num_labels,
        "dropout": dropouts(config),
    }
