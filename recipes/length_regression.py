"""A workload of one's own: `dynbench train --workload length_regression.py:LengthRegression`.

Predicts a number for each sequence of token ids, with a loss that is not dynbench's. The protocol that it follows is
documented in `dynbench/workloads/base.py`; no base class is needed, only these attributes and methods. Copy the file,
replace the data and the model, and name it with `--workload your_file.py:YourClass`.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynbench.config.schema import Config
from dynbench.workloads.data import IntArray, TokenisedData

WORDS = 512
WIDTH = 128
PAD = 0


class Regressor(nn.Module):
    """A small convolutional network over token ids, then the mean over each sequence's real tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, kernel_size=5, padding=2) for _ in range(2))
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """One number per sequence, shape [n], from token ids and validity, both [n, L]."""
        valid = mask.unsqueeze(1)
        hidden = self.embed(tokens).transpose(1, 2) * valid
        for layer in self.mix:
            hidden = hidden + F.relu(layer(hidden)) * valid  # padding stays zero: no sample sees its neighbours'
        mean = hidden.sum(dim=2) / mask.sum(dim=1, keepdim=True)
        return self.out(mean).squeeze(1)


class LengthRegression:
    """Sequences of 4 to `workload.max_length` tokens, each with the mean of a hidden value per token as its target.

    Args:
        config: the whole configuration, resolved; a workload reads of it what it likes.
    """

    positions = None  # the network takes sequences of any length

    def __init__(self, config: Config) -> None:
        self._targets = np.random.default_rng(1).normal(size=WORDS)
        self.train = self._sequences(4096, config.workload.max_length, seed=2)
        self.eval = self._sequences(512, config.workload.max_length, seed=3)
        self.facts = {"task": "regression", "layers": 2, "width": WIDTH}

    def _sequences(self, count: int, longest: int, seed: int) -> TokenisedData:
        """Lengths are lognormal. The labels number the samples, where a workload needs nothing else of them."""
        rng = np.random.default_rng(seed)
        lengths = np.clip(rng.lognormal(3.0, 0.8, size=count), 4, longest).astype(int)
        return TokenisedData.from_samples(
            [rng.integers(1, WORDS, size=length) for length in lengths], np.arange(count, dtype=np.int64)
        )

    def build_model(self, seed: int) -> nn.Module:
        """The model on the CPU in fp32; torch's random state is set to `seed` already."""
        return Regressor()

    def collate(self, data: TokenisedData, ids: IntArray, width: int) -> dict[str, Tensor]:
        """`tokens` and `mask`, both [n, width], and `target`, [n]."""
        tokens, valid = data.padded(ids, width, PAD)
        target = np.where(valid, self._targets[tokens], 0).sum(axis=1) / data.lengths[ids]
        return {
            "tokens": torch.from_numpy(tokens),
            "mask": torch.from_numpy(valid).float(),
            "target": torch.from_numpy(target).float(),
        }

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Sum over the samples of the Huber loss of each; every sample counts 1."""
        return F.huber_loss(model(batch["tokens"], batch["mask"]), batch["target"], reduction="sum")

    def eval_sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        """The summed loss; there is no accuracy, so `correct` is left out."""
        return {"loss_sum": self.loss(model, batch).item()}
