"""Samples that a rank runs together: padded batches, or rows without padding and what is seen of these."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dynbench.kernels import Boundaries, check_packed_rows, use_packed_rows
from dynbench.kernels.leak_check import look_at_flattened_rows
from dynbench.kernels.packed_models import first_position, flattened_row, use_flattened_rows
from dynbench.lengths import padded_width
from dynbench.plugins.policies import Layout
from dynbench.workloads.base import PacksRows, Rows, Workload, packs
from dynbench.workloads.data import IntArray, TokenisedData

logger = logging.getLogger(__name__)

CHECKED = 6
"""Samples that the proof is on, the longest of the data among them."""


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


CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One padded batch on a device, or one packed row."""

    n: int
    """Samples."""
    weight: float
    """What they count in the loss jointly."""
    width: int
    """Tokens of the longest, as it is padded."""
    tokens: int
    """That the model is given, padding included."""
    inputs: dict[str, Any]
    """What the workload's `collate` gave, on the device."""
    second: int = 0
    """Units of its samples' second number, which stand for work besides the tokens."""
    repeats: bool = False
    """Run once more without counting, because other ranks have more micro-batches."""


@dataclass(frozen=True, slots=True)
class LossPart:
    """What is recorded of a micro-batch that was run."""

    n: int
    weight: float
    width: int
    tokens: int
    total: Tensor
    """Its samples' losses added up, a detached scalar."""
    correct: Tensor | None = None
    """How many of them were right, a scalar; None where that is not counted."""


def make_micro_batch(
    workload: Workload, data: TokenisedData, ids: IntArray, multiple: int, device: torch.device = CPU
) -> MicroBatch:
    """The samples `ids` of `data`, padded as everywhere or packed, and moved to `device`.

    Args:
        workload: makes the tensors.
        data: its own, or of its kind.
        ids: sample ids, int64, shape [n].
        multiple: `workload.pad_to_multiple_of`, tokens.
        device: where to.
    """
    lengths = data.lengths[ids]
    packed = packs(workload)
    width = int(lengths.max()) if packed else padded_width(lengths, multiple, workload.positions)
    tokens = int(lengths.sum()) if packed else len(ids) * width
    inputs = {name: tensor.to(device) for name, tensor in workload.collate(data, ids, width).items()}
    second = 0 if data.second is None else int(data.second[ids].sum())
    return MicroBatch(len(ids), data.weight(ids), width, tokens, inputs, second)


def evened_out(batches: Sequence[MicroBatch], count: int) -> list[MicroBatch]:
    """Micro-batches up to `count`: the smallest again and again, counting nothing."""
    smallest = min(batches, key=lambda batch: batch.tokens)
    return [*batches, *[replace(smallest, repeats=True)] * (count - len(batches))]


def total_correct(parts: Sequence[LossPart]) -> int:
    """Samples of a share that were right; waits for the device."""
    return sum(int(part.correct.item()) for part in parts if part.correct is not None)


def mean_loss(parts: Sequence[LossPart]) -> float:
    """Weighted mean loss over a share's samples, 0 where they weigh nothing; waits for the device."""
    weight = sum(part.weight for part in parts)
    return sum(part.total.item() for part in parts) / weight if weight else 0.0
