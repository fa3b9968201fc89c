"""Batches as training pads them, for tests that look at tensors, and the row of a step of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from dynbench.engine.rank.memory import MemoryNow
from dynbench.engine.rank.row_builder import RowBuilder
from dynbench.engine.rank.timers import PHASES
from dynbench.engine.rank.turns import Moment
from dynbench.runs.records import StepRow
from dynbench.schedule.plan import Share
from dynbench.workloads.base import Workload
from dynbench.workloads.batches import LossPart, make_micro_batch
from dynbench.workloads.data import TokenisedData


def batch_of(
    workload: Workload, ids: np.ndarray, multiple: int = 1, data: TokenisedData | None = None
) -> dict[str, Tensor]:
    """Some samples, of those trained on by default."""
    return make_micro_batch(workload, workload.train if data is None else data, ids, multiple).inputs


def row_of(rows: RowBuilder, step: int, share: Share, parts: Sequence[LossPart]) -> StepRow:
    """What a rank writes of a measured step that took no time."""
    now, phases = MemoryNow(None, None), dict.fromkeys(PHASES, 0.0)
    return rows.row(Moment(step, measured=True), share, parts, phases, 0.0, now, skipped=False)
