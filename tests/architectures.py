"""Tiny configurations of several architectures, as folders with a config.json."""

from __future__ import annotations

from pathlib import Path

import transformers

TABLE = 64
"""Positions of those that have a table of them."""
ENCODER = {
    "vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": TABLE,
}  # fmt: skip
DECODER = {**ENCODER, "num_key_value_heads": 1, "head_dim": 8}
BOTH = {
    "vocab_size": 300, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": TABLE,
}  # fmt: skip
CONFIGS: dict[str, dict[str, object]] = {
    "bert": ENCODER,
    "roberta": {**ENCODER, "pad_token_id": 1},
    "mpnet": ENCODER,
    "albert": {**ENCODER, "embedding_size": 8},
    "electra": {**ENCODER, "embedding_size": 8},
    "deberta-v2": ENCODER,
    "modernbert": ENCODER,
    "distilbert": {"vocab_size": 300, "dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2,
                   "max_position_embeddings": TABLE},
    "gpt2": {"vocab_size": 300, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": TABLE, "pad_token_id": None},
    "llama": {**DECODER, "pad_token_id": None},
    "opt": {**ENCODER, "ffn_dim": 32, "word_embed_proj_dim": 16},
    "bloom": {"vocab_size": 300, "hidden_size": 16, "n_layer": 2, "n_head": 2},
    "t5": {"vocab_size": 300, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2},
    "bart": BOTH,
}  # fmt: skip


def write_config(folder: Path, architecture: str, **changes: object) -> Path:
    """A folder that holds the configuration alone."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**CONFIGS.get(architecture, {}), **changes}
    transformers.AutoConfig.for_model(architecture, **settings).save_pretrained(folder)
    return folder
