"""One of our language models with a random batch, as the benchmarks of whole models run it, phase by phase.

For profiles the same model has an attention whose parts are ranges of their own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from dynbench.bench.base import DTYPES, NotMeasured
from dynbench.bench.measuring import free_bytes, span
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.plugins import WORKLOADS
from dynbench.units import format_bytes
from dynbench.workloads.causal_lm import WAYS_OUT, logits_of, shape_config
from dynbench.workloads.hub import quiet_libraries
from dynbench.workloads.models import LANGUAGE_MODEL, make_model, set_rates

VOCABULARY = 10_000
STATE_BYTES = 16
"""Per parameter in fp32, of a step with AdamW: itself, its gradient and two moments."""
PRECISIONS = {dtype: name for name, dtype in DTYPES.items()}
LEARNING_RATE = 1e-4
ATTENTION = "dynbench_ranges"
"""Name of `ranged_attention` in transformers' attention interface."""


def config_of(size: str, context: int) -> PretrainedConfig:
    """The configuration of one of causal_lm's sizes, with the vocabulary of the systems assignment and no dropout."""
    config = shape_config(WORKLOADS["causal_lm"].aliases.get(size, size), context)
    config.vocab_size = VOCABULARY
    set_rates(config, 0.0)
    return config


def build_model(size: str, context: int, device: torch.device, bytes_per_parameter: int = STATE_BYTES) -> nn.Module:
    """The model on its device, with the values of seed 0.

    Args:
        size: of causal_lm.
        context: tokens of a sample.
        device: where to put it.
        bytes_per_parameter: that have to be free.

    Raises:
        NotMeasured: they are not.
    """
    quiet_libraries()
    config = config_of(size, context)
    with torch.device("meta"):
        count = parameters_of(make_model(config, size, WAYS_OUT, LANGUAGE_MODEL))
    needed, free = count * bytes_per_parameter, free_bytes(device)
    if needed > free:
        by_hand = f"{count / 1e6:.1f} M parameters x {bytes_per_parameter} B = {format_bytes(needed)}"
        raise NotMeasured(f"{by_hand} before any activation, and {format_bytes(free)} are free", "oom")
    torch.manual_seed(0)
    with torch.device(device):
        return make_model(config, size, WAYS_OUT, LANGUAGE_MODEL).float()


def parameters_of(model: nn.Module) -> int:
    """Elements of all parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def forward_flops(model: nn.Module, batch: int, context: int) -> int:
    """FLOPs of matrix products in a forward pass; the backward pass has twice as many.

    `2 T N + 4 B s^2 d` per layer: T = B s tokens by the N weights of linear layers, the head included; scores and
    values of attention as if nothing were masked (Chowdhery et al., PaLM, appendix B).
    """
    config = model.config
    assert isinstance(config, PretrainedConfig)
    linear = sum(each.weight.numel() for each in model.modules() if isinstance(each, nn.Linear | Conv1D))
    attention = 4 * batch * context**2 * config.hidden_size * config.num_hidden_layers
    return int(2 * batch * context * linear + attention)


class ModelStep:
    """Forward, backward and the step of AdamW.

    Args:
        model: on its device.
        batch: rows.
        context: tokens of each.
        dtype: float32, or what autocast computes matrix products in.
        called: what forward is called on, as a compiled form; None for the model.
    """

    def __init__(self, model: nn.Module, batch: int, context: int, dtype: str, called: nn.Module | None = None) -> None:
        self.device = next(model.parameters()).device
        self.precision = Precision(PRECISIONS[dtype], self.device)
        self._called = model if called is None else called
        drawn = torch.Generator().manual_seed(0)
        tokens = torch.randint(VOCABULARY, (2, batch, context), generator=drawn)
        self._tokens, self._targets = tokens.to(self.device)
        self.optimizer: torch.optim.Optimizer = AdamW(model.parameters(), lr=LEARNING_RATE)

    def forward(self) -> Tensor:
        """The loss."""
        with self.precision.autocast():
            logits = logits_of(self._called, self._tokens)
        return F.cross_entropy(logits.flatten(0, 1), self._targets.flatten())

    def backward(self, loss: Tensor) -> None:
        """Gradients."""
        self.precision.backward(loss)

    def update(self) -> None:
        """The optimizer's step, after which gradients are dropped."""
        self.precision.step(self.optimizer)
        self.optimizer.zero_grad()


def ranged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention of [batch, heads, n, channels] as it is written, each part in a range of its own."""
    n = query.shape[-2]
    with span("scores"):
        scores = query @ key.transpose(-1, -2)
    with span("mask"):
        later = torch.ones(n, n, dtype=torch.bool, device=query.device).triu(1)
        scaled = scores * (1 / math.sqrt(query.shape[-1]) if scaling is None else scaling)
        masked = scaled.masked_fill(later, -torch.inf)
    with span("softmax"):
        weights = masked.softmax(-1)
    with span("values"):
        result = weights @ value
    return result.transpose(1, 2).contiguous(), None


def ranged_model(size: str, context: int, device: torch.device) -> nn.Module:
    """One of our models with that attention.

    Raises:
        NotMeasured: memory for it is not there.
    """
    AttentionInterface.register(ATTENTION, ranged_attention)
    model = build_model(size, context, device)
    with_attention: PreTrainedModel = model
    with_attention.set_attn_implementation(ATTENTION)
    return model
