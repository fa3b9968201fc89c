"""Packed rows of a workload's samples, and the proof on its own data that they do not see each other."""

from __future__ import annotations

import logging
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from dynbench.kernels import Boundaries, check_packed_rows
from dynbench.workloads.base import Workload
from dynbench.workloads.data import IntArray, TokenisedData

logger = logging.getLogger(__name__)

CHECKED = 6
"""Samples that the proof is on, the longest of the data among them."""


@runtime_checkable
class PacksRows(Protocol):
    """What a workload has beside the protocol of `Workload` where it can make packed rows."""

    packed: bool
    """Whether it does: what `collate` gives is then a row of real tokens, and its `width` says nothing."""

    def build_padded_model(self, seed: int) -> nn.Module:
        """The model before it is made to take packed rows, which `build_model` gives."""


def packs(workload: Workload) -> bool:
    """Whether a workload makes packed rows."""
    return isinstance(workload, PacksRows) and workload.packed


def packed_row(data: TokenisedData, ids: IntArray) -> tuple[IntArray, dict[str, Any]]:
    """Samples in one row of real tokens, equal lengths side by side.

    Args:
        data: what `ids` number.
        ids: sample ids, int64, shape [n].

    Returns:
        The ids in the order of the row, and what the model takes: `input_ids`, int64 [1, T], and `boundaries`.
    """
    lengths = data.lengths[ids]
    order = np.argsort(lengths, kind="stable")
    tokens = torch.from_numpy(data.joined(ids[order]))
    return ids[order], {"input_ids": tokens[None], "boundaries": Boundaries(tuple(lengths[order].tolist()))}


def check_rows(workload: Workload, seed: int, device: torch.device, half: torch.dtype | None) -> dict[str, object]:
    """`check_packed_rows` of a workload's model on samples of its own; the model is gone afterwards.

    Args:
        workload: one that packs.
        seed: `train.seed`.
        device: where training will be.
        half: the half precision that it will be in, if it is.

    Raises:
        LeakFound: the samples of a row see each other.
    """
    assert isinstance(workload, PacksRows), "the rules of the configuration refuse others"
    data = workload.train
    samples = [data.joined(np.array([sample])).tolist() for sample in samples_to_check(data)]
    found = check_packed_rows(workload.build_padded_model(seed).to(device), samples, half)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    logger.info("samples of %s tokens in one packed row do not see each other", found["lengths"])
    return found


def samples_to_check(data: TokenisedData) -> IntArray:
    """Ids of samples of all lengths, the longest and the shortest among them; shape [n], n at least 2.

    Data of a single sample give it twice.
    """
    order = np.argsort(data.lengths, kind="stable")
    return order[np.linspace(0, len(order) - 1, min(CHECKED, max(2, len(order)))).round().astype(np.int64)]
