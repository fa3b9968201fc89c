"""A model that can be built again and again, wherever it is from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PretrainedConfig

from dynbench.runs.phrase import Phrase
from dynbench.workloads.model_config import describe


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
