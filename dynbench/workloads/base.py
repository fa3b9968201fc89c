"""What the training loop needs to know of a workload, and what a class of your own has to offer.

`dynbench train --workload my_module:MyWorkload`, or `path/to/my_file.py:MyWorkload`, trains any class that is called
with the whole configuration (`dynbench.config.schema.Config`, resolved) and follows the protocol below. No base class
is needed; `recipes/length_regression.py` is a complete example, which `recipes/custom_workload.yaml` compares policies
on.

- The module or file is looked for in the folder in which the command is started (or `workload.import_from`), then
  beside the shipped recipes, then among the installed packages. Every rank, and every trial of a probe, makes the
  object anew from the same file: its digest is recorded, and runs of different digests are not compared.
- `train`, `build_model`, `collate` and `loss` must be there; `eval` (with `eval_sums`), `positions` and `facts` may be
  left out, which means None, None and nothing.
- Everything must be the same on every rank and in every launch, as what a fixed seed gives: ranks plan by themselves.
- A sample is a sequence of int32 ids and one int64 label. Both are the workload's own to read: they may be numbers of
  rows in arrays of its own. What `collate` is given is `train`, `eval` or, in a probe, samples made up of the ids and
  labels of `train`.
- The loss is a sum, never a mean: the losses of the batch's samples added up, each already multiplied by its weight.
  What is minimised is that sum over the step's samples on all ranks divided by their weight, W: a rank's sum is
  multiplied by G / W before backward. A step whose samples weigh nothing has a gradient of 0.
- The weights are `weights` of the data: None, and every sample counts 1, however long, with one loss of its own
  (`reduction="sum"`); or of the mean over all target tokens, the number of targets of each sample, whose losses are
  added up too.
- That the losses add up is tried before the first step: of some samples together against each alone, with the model
  in evaluation mode, on the device. What mixes the samples of a batch, as batch normalisation does in training, changes
  with the plan.
- All parameters that require a gradient must get one in every step, as DistributedDataParallel asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from dynbench.workloads.data import IntArray, TokenisedData


class Workload(Protocol):
    """Data, model, loss and evaluation of one training task."""

    train: TokenisedData
    """Training samples, after the subset was drawn: at least a global batch, each of at least 1 token."""
    eval: TokenisedData | None
    """Held-out samples; None where the data has none, and nothing is evaluated."""
    positions: int | None
    """Longest padded sample that the model takes, tokens; None for any. No sample of `train` or `eval` is longer."""
    facts: dict[str, object]
    """Sources, sizes, fingerprints and decisions with their reasons, ready for JSON; they go into `env.json`."""

    def build_model(self, seed: int) -> nn.Module:
        """The model on the CPU in fp32, in training mode; equal seeds give equal weights on every rank.

        Args:
            seed: `train.seed`. For a class of the user's own, torch's random state is set to it already.
        """

    def collate(self, data: TokenisedData, ids: IntArray, width: int) -> dict[str, Tensor]:
        """Some samples as one batch of CPU tensors, n first; the names of the tensors are the workload's own.

        Args:
            data: what `ids` number.
            ids: sample ids, int64, shape [n], n at least 1.
            width: what every sample is padded to, tokens: the longest one's length, rounded up to a multiple of
                `workload.pad_to_multiple_of`, but never above `positions`. Plans count on it.
        """

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """The losses of the batch's samples added up, each times its weight, a scalar with gradient.

        Args:
            model: what `build_model` gave, wrapped by the synchronisation, on the device; call it, not its parts.
            batch: what `collate` gave, on the device. Mixed precision is on where `train.precision` asks for it.
        """

    def eval_sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        """Sums that add up over batches and ranks; the caller switches gradients off and knows number and weight.

        Returns:
            `loss_sum`, as `loss`; and where that means anything `correct`, how many of the samples were right, or
            `tokens`, how many tokens the loss is of, which gives a perplexity in place of an accuracy.
        """


@runtime_checkable
class Saves(Protocol):
    """Of a workload where its model can be saved."""

    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write the model of a state, and its tokenizer, as transformers saves them."""


@runtime_checkable
class Grades(Protocol):
    """Of a workload where it counts right answers while it trains."""

    def graded_loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """As `loss`, and the number of samples that were right, a scalar on the device."""


@runtime_checkable
class Expects(Protocol):
    """Of a workload where batches can be prepared ahead of their step."""

    def expect(self, share: Sequence[IntArray]) -> None:
        """Prepare the training samples of this rank's next step, those of each micro-batch."""


@runtime_checkable
class BuildsEmpty(Protocol):
    """Of a workload where its model can be made before it has weights."""

    def build_empty_model(self) -> nn.Module:
        """As `build_model`, on the meta device: nothing is drawn, read or tried, and all may seem to be trained."""


class Rows(Protocol):
    """How samples become one row of real tokens, and a model takes it."""

    def row(self, data: TokenisedData, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        """Samples as one row.

        Args:
            data: what `ids` number.
            ids: sample ids, int64, shape [n].

        Returns:
            The ids in the order of the row, and what the model takes: `input_ids`, int64 [1, T], `boundaries`, and what
            else there is.
        """

    def prepare(self, model: nn.Module) -> nn.Module:
        """The same model, which takes such rows from now on."""

    def look(self, model: nn.Module, samples: Sequence[Sequence[int]], half: torch.dtype | None) -> dict[str, object]:
        """What is seen of some samples in one row, ready for JSON; the model is of no use afterwards.

        Raises:
            LeakFound: they see each other, and rows of this kind promise that they do not.
        """


@runtime_checkable
class PacksRows(Protocol):
    """Of a workload where it can make rows without padding."""

    rows: Rows | None
    """How it does, None where it pads: what `collate` gives is then a row of real tokens, and its `width` says nothing.
    """

    def build_padded_model(self, seed: int) -> nn.Module:
        """The model before it is made to take rows, which `build_model` gives."""


def packs(workload: Workload) -> bool:
    """Whether a workload makes rows without padding."""
    return isinstance(workload, PacksRows) and workload.rows is not None
