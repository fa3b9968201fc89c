"""Over how many ranks: the same batch over more of them (strong), or as much per rank (weak).

Arms of several strategies may be told together: each is scaled against its own arm with the fewest workers.
"""

from __future__ import annotations

from dynbench.analysis.questions import sync
from dynbench.analysis.questions.base import COUNTS, Differences, Question

BATCH = "train.global_batch"
DEVICES = "env.devices"


class Scaling(Question):
    """Ranks may differ, and what grows in proportion with them."""

    def permitted(self, differences: Differences) -> set[str]:
        """As listed; the global batch where each worker keeps its share, more devices where they are of one kind."""
        found = super().permitted(differences)
        match differences.get("workers", differences.get("world_size")), differences.get(BATCH):
            case [(int() as few, int() as many), (int() as batch, int() as other)] if batch * many == other * few:
                found.add(BATCH)
        match differences.get(DEVICES):
            case [tuple() as names, tuple() as other_names] if {*names} == {*other_names}:
                found.add(DEVICES)
        return found


QUESTION = Scaling(
    name="scaling",
    description="how much faster more ranks are, and how much of each is left",
    asks=COUNTS,
    follows=(
        *(*sync.QUESTION.asks, *sync.QUESTION.follows),
        *("launch.threads", "schedule.capacity", "schedule.speeds", "schedule.buffer"),
    ),
    metrics=(
        "throughput_tokens_per_s.mean",
        "throughput_samples_per_s.mean",
        "step_time_ms.mean",
        "step_time_ms.p50",
        "step_time_ms.p95",
        "wait_fraction",
        "exposed_comm_ms.mean",
        "comm_ms.mean",
        "bytes_wire.mean",
        "padding_ratio",
        "peak_mem_mb.max",
    ),
    overview=("wait_fraction", "exposed_comm_ms.mean", "bytes_wire.mean", "padding_ratio", "peak_mem_mb.max"),
    figures=("scaling", "time_breakdown", "step_time_distribution", "step_time"),
    columns=("efficiency",),
    chapters=("scaling", "traffic", "profile", "time"),
)
