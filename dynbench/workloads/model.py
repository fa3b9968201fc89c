"""Models for classifying text: pretrained weights by name or folder, or random ones in a known or stored shape."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from dynbench.config.schema import Workload
from dynbench.workloads.configured_model import ConfiguredModel
from dynbench.workloads.pretrained_model import PretrainedModel
from dynbench.workloads.quiet import quiet_libraries
from dynbench.workloads.random_model import RandomModel


class ModelSource(Protocol):
    """Where a workload's model comes from."""

    @property
    def positions(self) -> int | None:
        """Longest padded sample that the model can take, tokens; None for any."""
        ...

    @property
    def facts(self) -> dict[str, object]:
        """Source and shape, ready for JSON."""
        ...

    def build(self, seed: int) -> nn.Module:
        """The model on the CPU in fp32, in training mode; equal seeds give equal weights."""
        ...


def model_source(
    settings: Workload, vocab_size: int, pad_id: int, num_labels: int, end_id: int | None = None
) -> ModelSource:
    """The model that `workload.weights`, `.model` and `.size` mean, with `workload.dropout` applied.

    Args:
        settings: the configuration's `workload` section.
        vocab_size: token ids of the data are below it.
        pad_id: token id of the padding.
        num_labels: classes of the data.
        end_id: token that ends every sample and stands nowhere else, where there is one.

    Raises:
        DataError: a local folder that holds no model.
        HubError: a hub name that is neither cached nor reachable.
        UsageError: a model that cannot take the data's tokens.
    """
    quiet_libraries()
    if settings.weights == "pretrained":
        return PretrainedModel.find(settings, vocab_size, pad_id, num_labels)
    if settings.shape == "model":
        return ConfiguredModel.find(settings, vocab_size, pad_id, num_labels, end_id)
    return RandomModel.shaped(settings, vocab_size, pad_id, num_labels)
