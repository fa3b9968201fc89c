"""Fewer optimizer steps over the same samples, and rows without padding: which of them costs loss."""

from __future__ import annotations

from dynbench.analysis.questions.base import EVALUATION, TRAINED_ON, Differences, Question

TRADED = {"train.global_batch", "train.steps", "train.warmup_steps"}
"""The batch, and the steps that shrink as it grows."""


class Steps(Question):
    """The global batch may grow where steps shrink in proportion: as many samples are measured, and as many warm up."""

    def permitted(self, differences: Differences) -> set[str]:
        """As listed, and batch and steps that come to the same samples, which are named where they do not."""
        found, traded = super().permitted(differences) - {*TRAINED_ON}, TRADED & differences.keys()
        return found | traded if len(traded) > 1 and not {*TRAINED_ON} & differences.keys() else found


QUESTION = Steps(
    name="steps",
    description="whether packing costs loss, or fewer optimizer steps over as many samples; only if named",
    asks=("schedule", "workload.layout"),
    named_only=True,
    overview=("throughput_tokens_per_s.mean", "padding_ratio", "wait_fraction", *EVALUATION),
    chapters=("steps", "time"),
)
