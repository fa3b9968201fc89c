"""Rows of a workload's samples without padding, and what is proven or seen of them on its own data."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from dynbench.kernels import Boundaries, check_packed_rows, use_packed_rows
from dynbench.kernels.flattened_rows import (
    first_position,
    flattened_row,
    look_at_flattened_rows,
    use_flattened_rows,
)
from dynbench.plugins.policies import Layout
from dynbench.workloads.base import Workload
from dynbench.workloads.data import IntArray, TokenisedData

logger = logging.getLogger(__name__)

CHECKED = 6
"""Samples that the proof is on, the longest of the data among them."""


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


class PackedRows:
    """Rows of samples that our attention keeps apart, equal lengths side by side."""

    def row(self, data: TokenisedData, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        """As the protocol has it."""
        lengths = data.lengths[ids]
        order = np.argsort(lengths, kind="stable")
        tokens = torch.from_numpy(data.joined(ids[order]))
        return ids[order], {"input_ids": tokens[None], "boundaries": Boundaries(tuple(lengths[order].tolist()))}

    def prepare(self, model: nn.Module) -> nn.Module:
        """As the protocol has it."""
        return use_packed_rows(model)

    def look(self, model: nn.Module, samples: Sequence[Sequence[int]], half: torch.dtype | None) -> dict[str, object]:
        """As the protocol has it."""
        found = check_packed_rows(model, samples, half)
        logger.info("samples of %s tokens in one packed row do not see each other", found["lengths"])
        return found


@dataclass(frozen=True)
class FlattenedRows:
    """Rows of transformers' flattening collator; attention is that of transformers.

    Args:
        first_position: of every sample, as the model numbers positions.
        use_cache: a language model makes its cache.
    """

    first_position: int
    use_cache: bool

    def row(self, data: TokenisedData, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
        """As the protocol has it."""
        samples = np.split(data.joined(ids), np.cumsum(data.lengths[ids])[:-1])
        row = flattened_row([sample.tolist() for sample in samples], self.first_position)
        boundaries = Boundaries(tuple(data.lengths[ids].tolist()))
        return ids, {"input_ids": row["input_ids"], "position_ids": row["position_ids"], "boundaries": boundaries}

    def prepare(self, model: nn.Module) -> nn.Module:
        """As the protocol has it."""
        return use_flattened_rows(model, use_cache=self.use_cache)

    def look(self, model: nn.Module, samples: Sequence[Sequence[int]], half: torch.dtype | None) -> dict[str, object]:
        """As the protocol has it."""
        found = look_at_flattened_rows(model, samples, half, use_cache=self.use_cache)
        if found["leak"] is None:
            logger.info("samples of %s tokens in one flattened row do not see each other", found["lengths"])
        else:
            logger.warning(
                "workload.layout: flattened, and samples of %s tokens in one row: %s; it trains all the same, and what "
                "it learns is not what padded batches teach; packed keeps samples apart (workload.layout=packed)",
                *(found["lengths"], found["leak"]),
            )
        return found


def rows_of(layout: Layout, config: Any, *, use_cache: bool = False) -> Rows | None:
    """How a workload makes rows under a layout; None where batches are padded.

    Args:
        layout: `workload.layout`.
        config: of its model, of transformers.
        use_cache: as `FlattenedRows`.
    """
    if layout == "padded":
        return None
    return PackedRows() if layout == "packed" else FlattenedRows(first_position(config), use_cache)


@runtime_checkable
class PacksRows(Protocol):
    """What a workload has beside the protocol of `Workload` where it can make rows without padding."""

    rows: Rows | None
    """How it does, None where it pads: what `collate` gives is then a row of real tokens, and its `width` says nothing.
    """

    def build_padded_model(self, seed: int) -> nn.Module:
        """The model before it is made to take rows, which `build_model` gives."""


def packs(workload: Workload) -> bool:
    """Whether a workload makes rows without padding."""
    return isinstance(workload, PacksRows) and workload.rows is not None


def check_rows(workload: Workload, seed: int, device: torch.device, half: torch.dtype | None) -> dict[str, object]:
    """What is seen of samples of its own data in one row of a workload's model; the model is gone afterwards.

    Args:
        workload: one that packs.
        seed: `train.seed`.
        device: where training will be.
        half: the half precision that it will be in, if it is.

    Raises:
        LeakFound: the samples of a packed row see each other.
    """
    assert isinstance(workload, PacksRows) and workload.rows is not None, "the rules of the configuration refuse others"
    data = workload.train
    samples = [data.joined(np.array([sample])).tolist() for sample in samples_to_check(data)]
    found = workload.rows.look(workload.build_padded_model(seed).to(device), samples, half)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return found


def samples_to_check(data: TokenisedData) -> IntArray:
    """Ids of samples of all lengths, the longest and the shortest among them; shape [n], n at least 2.

    Data of a single sample give it twice.
    """
    order = np.argsort(data.lengths, kind="stable")
    return order[np.linspace(0, len(order) - 1, min(CHECKED, max(2, len(order)))).round().astype(np.int64)]
