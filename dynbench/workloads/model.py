"""Models for classifying text: pretrained weights by name or folder, or random ones in a known or stored shape."""

from __future__ import annotations

from dynbench.config.schema import Workload
from dynbench.workloads.configured_model import configured_model
from dynbench.workloads.model_source import ModelSource
from dynbench.workloads.pretrained_model import pretrained_model
from dynbench.workloads.quiet import quiet_libraries
from dynbench.workloads.random_model import random_model


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
        return pretrained_model(settings, vocab_size, pad_id, num_labels)
    if settings.shape == "model":
        return configured_model(settings, vocab_size, pad_id, num_labels, end_id)
    return random_model(settings, vocab_size, pad_id, num_labels)
