"""Tiny models of the architectures that are known to be right on packed rows, and rows for them."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from architectures import CONFIGS
from torch import Tensor

from dynbench.kernels import Boundaries
from dynbench.workloads.models import CLASSIFIER, LANGUAGE_MODEL

LENGTHS = (1, 3, 3, 5, 9, 12)
"""Of a row's samples, ascending; two are equal, one has a single token, and several are beyond `WINDOW`."""
WINDOW = 4
"""How far ModernBERT's second layer looks, tokens."""
SLIDING = {"pad_token_id": 0, "local_attention": 2 * WINDOW, "global_attn_every_n_layers": 2}
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "distilbert": ("distilbert", {}),
    "bert": ("bert", {}),
    "roberta": ("roberta", {}),
    "modernbert, first token": ("modernbert", {**SLIDING, "classifier_pooling": "cls"}),
    "modernbert, mean": ("modernbert", {**SLIDING, "classifier_pooling": "mean"}),
    "gpt2": ("gpt2", {}),
    "llama, grouped heads": ("llama", {}),
    "llama": ("llama", {"num_key_value_heads": 2}),
}
"""Name to architecture, and what is changed in `architectures.CONFIGS`."""
CAUSAL = tuple(name for name, (architecture, _) in CHANGES.items() if architecture in ("gpt2", "llama"))


def tiny_model(name: str, attention: str = "sdpa", **more: Any) -> Any:
    """A model of three classes, or a language model, with random weights that make attention uneven."""
    architecture, changes = CHANGES[name]
    settings = {**CONFIGS[architecture], **changes, **more}
    config = transformers.AutoConfig.for_model(architecture, **settings, num_labels=3)
    kind = LANGUAGE_MODEL if name in CAUSAL else CLASSIFIER
    torch.manual_seed(0)
    model = kind.auto_class().from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
    return model.eval()


def tokens(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Samples of these lengths, without special tokens."""
    drawn = torch.Generator().manual_seed(1)
    return [torch.randint(10, 300, (length,), generator=drawn).tolist() for length in lengths]


def row_of(samples: list[list[int]]) -> tuple[Tensor, Boundaries]:
    """The samples packed in this order, int64 [1, T], and where they are."""
    joined = torch.tensor([token for sample in samples for token in sample])
    return joined[None], Boundaries(tuple(map(len, samples)))
