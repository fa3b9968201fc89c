"""From a measured step to the row that a rank writes, and the bytes it has sent as the kernel counts them.

An interface counts what every process of the machine sends, with headers; a connection's own count holds this rank's
payload alone, on any interface and between any machines.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dynbench.engine.rank.memory import MemoryNow
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.timers import PHASES, WITHIN, Phase, Synchronised
from dynbench.engine.rank.turns import Moment
from dynbench.runs.records import COMM_COLUMNS, GRAD_REL_ERROR, REPEATED, TURN, Call, Column, StepRow, work_hash
from dynbench.schedule.plan import IntArray, Share
from dynbench.wire.traffic import Traffic, union_ms
from dynbench.workloads.batches import LossPart, mean_loss

_DESCRIPTORS = Path("/proc/self/fd")
_NOT_YET_SENT = struct.Struct("=144xI")
_SENT = struct.Struct("=200xQQ")
"""Of Linux's `struct tcp_info`: sent, and sent again, since Linux 4.19."""


def can_count() -> bool:
    """Whether the system tells."""
    if sys.platform != "linux" or not _DESCRIPTORS.is_dir():
        return False
    with socket.socket() as new:
        return _written(new.fileno()) is not None


class SentBytes:
    """Counts from one moment to the next what went out in between.

    Args:
        counts: whether to count at all; not where nothing tells, and not on GPUs, whose collectives go elsewhere.
    """

    def __init__(self, counts: bool) -> None:
        self._counts = counts
        self._before = _by_connection() if counts else {}

    def take(self) -> int | None:
        """Bytes since the last call; None where they are not counted, or a connection is gone and its count with it."""
        if not self._counts:
            return None
        before, self._before = self._before, _by_connection()
        if before.keys() - self._before.keys():
            return None
        return sum(written - before.get(connection, 0) for connection, written in self._before.items())


def _by_connection() -> dict[int, int]:
    """Bytes handed to each open TCP connection, by its inode."""
    found = {}
    for entry in _DESCRIPTORS.iterdir():
        with suppress(OSError):
            status = os.fstat(int(entry.name))
            if stat.S_ISSOCK(status.st_mode) and (written := _written(int(entry.name))) is not None:
                found[status.st_ino] = written
    return found


def _written(descriptor: int) -> int | None:
    """What was given to a connection, sent or not yet; None for other sockets, and where the kernel does not say."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return None
        facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
        if len(facts) >= _SENT.size:
            sent, again = _SENT.unpack_from(facts)
            (waiting,) = _NOT_YET_SENT.unpack_from(facts)
            return int(sent - again + waiting)
    return None


def extra_columns(replica: Replica) -> tuple[Column, ...]:
    """The columns of a real rank beyond those of every run."""
    strategy = replica.strategy
    repeated = (REPEATED,) if strategy.collective_forward else ()
    return (TURN, *COMM_COLUMNS, *repeated, *replica.columns, *strategy.columns, *strategy.wire.columns)


def extra_values(
    replica: Replica,
    moment: Moment,
    parts: Sequence[LossPart],
    repeated: int,
    traffic: Traffic,
    synchronised: Synchronised,
    bytes_sent: int | None,
) -> dict[str, object]:
    """Their values for the step that ended.

    Args:
        replica: what was trained.
        moment: the step.
        parts: what the rank ran.
        repeated: micro-batches that it ran again.
        traffic: of its wire in the step.
        synchronised: when it waited for the others.
        bytes_sent: by the process; None where that is not known.
    """
    strategy = replica.strategy
    compression = strategy.wire.row()
    if compression.get(GRAD_REL_ERROR.name) is not None:  # by collectives that are not counted
        bytes_sent = None
    return {
        TURN.name: moment.turn,
        "comm_ms": traffic.busy_ms,
        "comm_sum_ms": traffic.sum_ms,
        "hidden_comm_ms": hidden_ms(traffic.calls, synchronised.spans_ns),
        "collectives": len(traffic.calls),
        **{f"sync_{phase}_ms": synchronised.within_ms.get(phase, 0.0) for phase in WITHIN},
        "bytes_raw": traffic.bytes_raw,
        "bytes_wire": traffic.bytes_wire,
        "gradient_bytes_raw": traffic.gradient_raw,
        "gradient_bytes_wire": traffic.gradient_wire,
        "bytes_uncompressed": traffic.bytes_uncompressed,
        "bytes_sent": bytes_sent,
        REPEATED.name: repeated,
        **replica.row(),
        **replica.counted(parts),
        **strategy.row(),
        **compression,
    }


def hidden_ms(calls: Sequence[Call], synchronising: Sequence[tuple[int, int]]) -> float:
    """How long calls were under way while the rank did not synchronise; spans are begin and end in nanoseconds."""
    under_way = [(call.start_ns, call.end_ns) for call in calls]
    return max(0.0, union_ms([*under_way, *synchronising]) - union_ms(synchronising))


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
        step_ms: float,
        memory: MemoryNow,
        *,
        skipped: bool,
    ) -> StepRow:
        """The row of one step: a share, what its micro-batches gave, and `phases` and `step_ms` in milliseconds."""
        ids = np.concatenate((np.empty(0, dtype=np.int64), *share))
        lengths = self.lengths[ids]
        real_tokens2 = int((lengths**2).sum())
        padded_tokens2 = sum(part.tokens * part.width for part in parts)
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
            real_tokens2=real_tokens2,
            padded_tokens2=real_tokens2 if self.layout == "packed" else padded_tokens2,
            **{f"{phase}_ms": phases[phase] for phase in PHASES},
            compute_ms=phases["forward"] + phases["backward"],
            step_time_ms=step_ms,
            peak_mem_mb=memory.peak_mb,
            reserved_mem_mb=memory.reserved_mb,
            loss=mean_loss(parts),
            work_hash=work_hash(ids, lengths),
            skipped=int(skipped),
            weight=sum(part.weight for part in parts),
            layout=self.layout,
        )
