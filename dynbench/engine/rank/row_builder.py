"""From a measured step to the row that a rank writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.timers import Phase
from dynbench.engine.rank.turns import Moment
from dynbench.runs.columns import COMM_COLUMNS, REPEATED, TURN, Column
from dynbench.runs.records import StepRow, work_hash
from dynbench.schedule.plan import IntArray, Share
from dynbench.workloads.micro_batch import LossPart, mean_loss


def extra_columns(replica: Replica) -> tuple[Column, ...]:
    """The columns of a real rank beyond those of every run."""
    strategy = replica.strategy
    repeated = (REPEATED,) if strategy.collective_forward else ()
    return (TURN, *COMM_COLUMNS, *repeated, *replica.columns, *strategy.columns, *strategy.wire.columns)


def extra_values(replica: Replica, moment: Moment, parts: Sequence[LossPart], repeated: int) -> dict[str, object]:
    """Their values for the step that ended, in which the rank ran `parts`, and so many micro-batches again."""
    strategy = replica.strategy
    traffic = strategy.wire.take()
    sent = {"comm_ms": traffic.busy_ms, "bytes_raw": traffic.bytes_raw, "bytes_wire": traffic.bytes_wire}
    return {
        TURN.name: moment.turn,
        **sent,
        REPEATED.name: repeated,
        **replica.row(),
        **replica.counted(parts),
        **strategy.row(),
        **strategy.wire.row(),
    }


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """What is the same in all rows of a rank.

    Args:
        rank: the rank.
        policy: name of the policy.
        layout: of its micro-batches.
        lengths: tokens of every training sample, shape [N].
    """

    rank: int
    policy: str
    layout: str
    lengths: IntArray

    def row(
        self,
        moment: Moment,
        share: Share,
        parts: Sequence[LossPart],
        phases: Mapping[Phase, float],
        *,
        step_ms: float,
        peak_mem_mb: float | None,
        reserved_mem_mb: float | None,
        skipped: bool,
    ) -> StepRow:
        """The row of one step: a share, what its micro-batches gave, and `phases` and `step_ms` in milliseconds."""
        ids = np.concatenate((np.empty(0, dtype=np.int64), *share))
        lengths = self.lengths[ids]
        return StepRow(
            step=moment.step,
            rank=self.rank,
            warmup=int(not moment.measured),
            policy=self.policy,
            local_batch=len(ids),
            micro_batches=len(share),
            max_seq_len_in_batch=max((part.width for part in parts), default=0),
            real_tokens=int(lengths.sum()),
            padded_tokens=sum(part.tokens for part in parts),
            plan_ms=phases["plan"],
            data_ms=phases["data"],
            forward_ms=phases["forward"],
            backward_ms=phases["backward"],
            sync_ms=phases["sync"],
            optimizer_ms=phases["optimizer"],
            compute_ms=phases["forward"] + phases["backward"],
            step_time_ms=step_ms,
            peak_mem_mb=peak_mem_mb,
            reserved_mem_mb=reserved_mem_mb,
            loss=mean_loss(parts),
            work_hash=work_hash(ids, lengths),
            skipped=int(skipped),
            weight=sum(part.weight for part in parts),
            layout=self.layout,
        )
