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

from typing import Protocol

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
