"""Tiny models on packed rows, which ranks train as one process trains them on padded batches."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch
from packed import tiny_model
from strategy_jobs import trained_beside_one_process
from sync_jobs import configured
from torch import nn

from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.toy_check import Difference, difference
from dynbench.workloads.batches import PackedRows
from dynbench.workloads.causal_lm import CausalLanguageModel
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.text_classification import TextClassification

SAMPLES, LONGEST, STEPS = 60, 12, 10


class _Tiny:
    """In double precision, without dropout, and with a frozen parameter."""

    facts: dict[str, object]
    architecture: str
    without: dict[str, float]
    frozen: str

    def __init__(self, packed: bool) -> None:
        random = np.random.default_rng(4)
        lengths = random.integers(1, LONGEST + 1, size=SAMPLES)
        self.rows = PackedRows() if packed else None
        self.positions, self.eval, self.facts, self._pad_id = None, None, {}, 0
        tokens = [random.integers(10, 300, size=length).tolist() for length in lengths]
        self.train = TokenisedData.from_samples(
            tokens, random.integers(0, 3, size=SAMPLES), weights=self.weights(lengths)
        )

    def weights(self, lengths: np.ndarray) -> np.ndarray | None:
        return None

    def build_padded_model(self, seed: int) -> nn.Module:
        model = tiny_model(self.architecture, **self.without).double().train()
        model.get_parameter(self.frozen).requires_grad_(False)
        return model

    def build_empty_model(self) -> nn.Module:
        with torch.device("meta"):
            model = self.build_padded_model(0).requires_grad_(True)
        return model if self.rows is None else self.rows.prepare(model)


class TinyLanguageModel(_Tiny, CausalLanguageModel):
    architecture = "gpt2"
    without: ClassVar = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    frozen = "transformer.ln_f.bias"

    def weights(self, lengths: np.ndarray) -> np.ndarray:
        return lengths - 1


class TinyClassifier(_Tiny, TextClassification):
    architecture = "distilbert"
    without: ClassVar = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    frozen = "pre_classifier.bias"


TINY: dict[str, type[_Tiny]] = {"language": TinyLanguageModel, "classification": TinyClassifier}


def packed(rank: int, sync: str, model: str, optimizer: str, fault: str | None = None) -> Difference | None:
    """How far weights trained on packed rows are from one process's on whole padded batches, where this rank has them.

    A planted fault is `rows` (a row counts one, whatever is in it), or `forgets` (who the row's samples are is lost).
    """
    rate = {"sgd": 1e-2, "adamw": 1e-3}[optimizer]
    settings = [f"train.optimizer={optimizer}", f"train.learning_rate={rate}", "train.precision=fp32"]
    layout = ["workload.layout=packed", "schedule.mode=dynamic", "workload.pad_to_multiple_of=1"]
    config = configured(sync, *settings, *layout)
    ours: Any = TINY[model](packed=True)
    by_rows = patch.object(Replica, "weight", lambda _, share: float(len(share)))
    with by_rows if fault == "rows" else nullcontext():
        if fault == "forgets":
            whole = ours.collate
            ours.collate = lambda *arguments: _in_one(whole(*arguments))
        found, wanted_state = trained_beside_one_process(config, ours, TINY[model](packed=False), STEPS)
    return None if found is None else difference(found, wanted_state)


def _in_one(row: dict[str, Any]) -> dict[str, Any]:
    """The row as one sample whose first tokens see the last ones of those before."""
    first, *others = row["boundaries"].lengths
    if others:
        row["boundaries"] = type(row["boundaries"])((first + others[0] - 1, 1, *others[1:]))
    return row
