"""The workload of a configuration: one of the registry, or a class that `workload.name` says the place of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from dynbench.config import schema
from dynbench.config.schema import Config
from dynbench.plugins import WORKLOADS
from dynbench.workloads.base import Workload
from dynbench.workloads.data import IntArray
from dynbench.workloads.own_code import find_own_code, registered_code
from dynbench.workloads.own_workload import OwnWorkload


@runtime_checkable
class Saves(Protocol):
    """What a workload has beside the protocol of `Workload` where its model can be saved."""

    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write the model of a state, and its tokenizer, as transformers saves them."""


@runtime_checkable
class Grades(Protocol):
    """What a workload has beside the protocol of `Workload` where it counts right answers while it trains."""

    def graded_loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """As `loss`, and the number of samples that were right, a scalar on the device."""


@runtime_checkable
class Expects(Protocol):
    """What a workload has beside the protocol of `Workload` where batches can be prepared ahead of their step."""

    def expect(self, share: Sequence[IntArray]) -> None:
        """Told the training samples of this rank's next step, those of each micro-batch."""


@runtime_checkable
class BuildsEmpty(Protocol):
    """What a workload has beside the protocol of `Workload` where its model can be made before it has weights."""

    def build_empty_model(self) -> nn.Module:
        """As `build_model`, on the meta device: nothing is drawn, read or tried, and all may seem to be trained."""


def import_model_code(settings: schema.Workload) -> None:
    """Import what making the model imports, which takes seconds, as far as its workload says it."""
    entry = None if settings.runs_own_code else WORKLOADS[settings.name]
    for module in () if entry is None else entry.imports_of(settings.shape):
        import_module(module)


def build_workload(config: Config, classes: Sequence[str] = ()) -> Workload:
    """The workload of `workload.name` with its data loaded and tokenised; no model is built yet.

    Args:
        config: resolved configuration.
        classes: those of a trained classifier of ours in order, which the data are numbered by; none keeps their own.

    Raises:
        DataError: a data file or vocabulary that cannot be used.
        HubError: a hub name that is neither cached nor reachable.
        UsageError, WorkerFailed: a workload of the user's own, by its place or registered, that cannot be used, or
            whose code raised an error.
    """
    if config.workload.is_own:
        return OwnWorkload(config, find_own_code(config.workload))
    name = config.workload.name
    made = WORKLOADS.find(name).load()
    if name not in WORKLOADS.ours:
        return OwnWorkload(config, registered_code(name, made), made)
    workload: Workload = made(config, classes) if classes else made(config)
    return workload
