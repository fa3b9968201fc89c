"""The classes of `toy_plugins.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from toy_plugins import Digits, Note, Rounds, Sum, Turns, Words
from toys import Naive

from dynbench.bench.base import Benchmark, Case, Measured
from dynbench.compress.base import Compressor
from dynbench.config.schema import Config, Workload
from dynbench.engine.rank.rank_process import RankContext
from dynbench.plugins import options_of
from dynbench.runs.records import Column
from dynbench.schedule.plan import IntArray, StepPlan, single
from dynbench.schedule.policy import BatchPolicy
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Segment
from dynbench.workloads.datasets.base import Splits
from dynbench.workloads.datasets.generated import generate
from dynbench.workloads.text_classification import TextClassification


class Turned(BatchPolicy):
    def deal(self, batches: Sequence[IntArray], first_step: int) -> Sequence[StepPlan]:
        turns, workers = options_of(self.problem.settings, Turns).turns, self.problem.workers
        return [
            StepPlan(step, single([batch[(rank + turns) % workers :: workers] for rank in range(workers)]))
            for step, batch in enumerate(batches, first_step)
        ]


class OneByOne(Naive):
    columns: ClassVar[tuple[Column, ...]] = (Column("divided_late", "integer", "", "Whether after the sum."),)

    def row(self) -> Mapping[str, object]:
        return {"divided_late": int(options_of(self.settings, Sum).divide_late)}


class Rounded(Compressor):
    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        parts = flat.new_empty(channel.world_size * len(flat))
        channel.all_gather(parts, torch.round(flat, decimals=options_of(self.settings, Digits).digits)).wait()
        flat.copy_(parts.view(channel.world_size, -1).mean(0))


class Noted(TextClassification):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.facts["note"] = options_of(config.workload, Note).note


def few_words(settings: Workload) -> Splits:
    splits = generate(lambda n, rng: rng.integers(2, 20, size=n))
    words = options_of(settings, Words).words
    train = splits.train.data.take(np.arange(words))
    return Splits(type(splits.train)(train, splits.train.vocab_size, splits.train.pad_id, "a few words"))


class Nothing(Benchmark):
    options: Rounds
    headers: ClassVar = {"case": "case", "n": "n", "p50": "p50 (ms)", "ranks": "ranks"}
    processes = 1

    def cases(self) -> Sequence[Case]:
        return [Case("nothing", [0], "none")]

    def measure(self, case: Case, context: RankContext) -> Measured:
        return Measured(np.zeros(self.options.rounds), {"ranks": context.world_size})
