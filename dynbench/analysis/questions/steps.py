"""Fewer optimizer steps over the same samples, and rows without padding: which of them costs loss."""

from __future__ import annotations

from dynbench.analysis.questions.base import EVALUATION, Differences, Question

FEWER = {"train.steps", "train.warmup_steps"}
"""What shrinks as the global batch grows."""
BATCH = "train.global_batch"


class Steps(Question):
    """The global batch may grow where the steps, those of the warm-up too, shrink in proportion: as many samples."""

    def permitted(self, differences: Differences) -> set[str]:
        """As listed, and batch and steps whose products are the same."""
        found = super().permitted(differences)
        match differences.get(BATCH):
            case (int() as batch, int() as other):
                counts = [differences.get(key) for key in FEWER]
                if all(count is None or _as_many(count, batch, other) for count in counts) and any(counts):
                    found |= {BATCH, *FEWER} & {*differences}
        return found


def _as_many(steps: tuple[object, object], batch: int, other: int) -> bool:
    match steps:
        case (int() as few, int() as many):
            return few * batch == many * other
    return False


QUESTION = Steps(
    name="steps",
    description="whether packing costs loss, or fewer optimizer steps over as many samples; only if named",
    asks=("schedule", "workload.layout"),
    named_only=True,
    overview=("throughput_tokens_per_s.mean", "padding_ratio", "wait_fraction", *EVALUATION),
    chapters=("steps", "time"),
)
