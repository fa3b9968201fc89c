"""One rank of a program of recipes/own_loop, judged; rank 0 prints one JSON object.

Before every optimizer step the gradient is compared, in float64, with that of all samples of the step at once. The text
of the program is run as it is; how many batches it accumulates is set through the library that it uses.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from functools import partialmethod
from pathlib import Path
from typing import Any

import accelerate
import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dynbench.sampler import PlannedBatchSampler

EPOCHS = 2


class GradientJudge:
    """Compares the gradients of a program, step by step, with those of one process.

    Args:
        names: the program's global names, filled as it runs.
        accumulated: batches per optimizer step.
    """

    def __init__(self, names: dict[str, Any], accumulated: int) -> None:
        self.names, self.accumulated = names, accumulated
        self.errors: list[float] = []
        """Norm of the difference over that of the gradient, per optimizer step; at the end that of an evaluation."""
        self._steps: list[list[int]] = []

    def before_step(self, *_: object) -> None:
        """What every optimizer calls."""
        model = getattr(self.names["model"], "module", self.names["model"])
        alone = copy.deepcopy(model)
        alone.zero_grad()
        self._steps = self._steps or self._samples_of_steps()
        self._loss(alone, self._steps[len(self.errors)]).backward()
        ours, wanted = (torch.cat([p.grad.flatten() for p in one.parameters()]) for one in (model, alone))
        self.errors.append(float((ours - wanted).norm() / wanted.norm()))

    def of_evaluation(self) -> float:
        """How far the Trainer's loss of all its data is from their mean loss."""
        trainer, data = self.names["trainer"], self.names["data"]
        evaluated = trainer.evaluate(data)["eval_loss"]
        with torch.no_grad():
            return abs(evaluated / float(self._loss(trainer.model, list(range(len(data))))) - 1)

    def _loss(self, model: nn.Module, ids: list[int]) -> Tensor:
        if "data" in self.names:
            samples = [self.names["data"][i] for i in ids]
            trainer = self.names.get("trainer")
            collate = self.names["loader"].collate_fn if trainer is None else trainer.data_collator
            loss: Tensor = model(**collate(samples)).loss
            return loss
        rows = nn.utils.rnn.pad_sequence([self.names["samples"][i] for i in ids], batch_first=True)
        return model(rows).pow(2).mean()

    def _samples_of_steps(self) -> list[list[int]]:
        """Samples of every optimizer step over all ranks; the Trainer ends an accumulation with the epoch."""
        trainer = self.names.get("trainer")
        if "data" in self.names:
            lengths, batch = [len(sample["input_ids"]) for sample in self.names["data"]], 16
        else:
            lengths, batch = [len(sample) for sample in self.names["samples"]], 32
        more = {"layout": "packed"} if "PackedCollator" in self.names else {}
        world_size = dist.get_world_size()
        ranks = [PlannedBatchSampler(lengths, world_size, rank, batch, **more) for rank in range(world_size)]
        epochs = []
        for epoch in range(EPOCHS):
            for sampler in ranks:
                sampler.set_epoch(epoch)
            epochs.append([[i for ids in shares for i in ids] for shares in zip(*ranks, strict=True)])
        stretches = epochs if trainer is not None else [epochs[0] + epochs[1]]
        return [
            [i for batch in batches[first : first + self.accumulated] for i in batch]
            for batches in stretches
            for first in range(0, len(batches), self.accumulated)
        ]


def preset(kind: type, **settings: object) -> None:
    """Other defaults for a class, wherever its name was imported to."""
    kind.__init__ = partialmethod(kind.__init__, **settings)  # type: ignore[misc]


def main(program: str, accumulated: int) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    preset(transformers.DistilBertConfig, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0)
    preset(transformers.TrainingArguments, gradient_accumulation_steps=accumulated, max_grad_norm=0.0)
    preset(transformers.TrainingArguments, per_device_eval_batch_size=4)
    if Path(program).stem == "with_accelerate":  # the Trainer makes an Accelerator of its own
        preset(accelerate.Accelerator, gradient_accumulation_steps=accumulated)
    judge = GradientJudge({"__name__": "__main__"}, accumulated)
    register_optimizer_step_pre_hook(judge.before_step)
    exec(compile(Path(program).read_text(encoding="utf-8"), program, "exec"), judge.names)
    if "trainer" in judge.names:
        judge.errors.append(judge.of_evaluation())
    if os.environ["RANK"] == "0":
        print(json.dumps({"errors": judge.errors}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # what torch's threads do while the interpreter goes down is not under test
