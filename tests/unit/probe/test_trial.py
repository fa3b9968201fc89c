"""What a trial runs is what training runs: padded samples, and lengths that padding reaches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynbench.config.load import load_config
from dynbench.errors import UsageError
from dynbench.probe.prober import _length_grid
from dynbench.probe.trial import TrialStep
from dynbench.workloads.registry import build_workload


def test_every_sample_is_padded_so_that_the_attention_keeps_its_mask() -> None:
    config = load_config(None, ["train.precision=fp32", "train.learning_rate=5e-4", "workload.pad_to_multiple_of=1"])
    workload = build_workload(config)
    seen = []

    class Seeing:
        def __getattr__(self, name: str) -> object:
            return getattr(workload, name)

        def loss(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            seen.append(inputs["attention_mask"])
            return workload.loss(model, inputs)

    TrialStep(config, Seeing(), torch.device("cpu")).step(3, 40)
    (mask,) = seen
    assert mask.shape == (3, 40)
    assert np.array_equal(mask.sum(dim=1), [39, 39, 39])


@pytest.mark.parametrize(("multiple", "longest"), [(1, 100), (8, 104)])
def test_the_grid_ends_where_padding_ends(multiple: int, longest: int) -> None:
    config = load_config(None, ["workload.max_length=100", f"workload.pad_to_multiple_of={multiple}"])
    assert _length_grid(config)[-1] == longest
    beyond = config.model_copy(update={"probe": config.probe.model_copy(update={"lengths": (longest + 1,)})})
    with pytest.raises(UsageError, match=r"above workload\.max_length"):
        _length_grid(beyond)
