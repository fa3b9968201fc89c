"""The tolerance of losses, tried on a real training: rounding is within it, a wrong weight is not."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn
from unit.analysis.conftest import compare, findings, with_steps

STEPS, BATCH, RANKS = 30, 16, 2
VOCABULARY, WIDTH, LONGEST = 200, 24, 24
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Model(nn.Module):
    """Two layers of a transformer that classify the mean of what is no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        layers = (nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2))
        self.layers, self.score = nn.ModuleList(layers), nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor, valid: Tensor) -> Tensor:
        hidden = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=~valid)
        return self.score((hidden * valid[..., None]).sum(1) / valid.sum(1, keepdim=True))


def deal(lengths: np.ndarray, sort: bool) -> list[np.ndarray]:
    """The batch's samples by rank: in turn, or by length, so that both ranks have as many tokens."""
    if not sort:
        return [np.arange(rank, BATCH, RANKS) for rank in range(RANKS)]
    order = np.argsort(-lengths, kind="stable")
    return np.split(order, [int(np.searchsorted(np.cumsum(lengths[order]), lengths.sum() / RANKS))])


def losses(precision: str, seed: int, *, sort: bool, weighted: bool = True) -> list[float]:
    """The global loss of every step; without weights every rank's mean counts alike, whatever its samples."""
    torch.manual_seed(seed)
    model, random = Model(), np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4)
    found = []
    for _ in range(STEPS):
        lengths = random.integers(4, LONGEST + 1, BATCH)
        tokens = torch.from_numpy(random.integers(0, VOCABULARY, (BATCH, LONGEST)))
        valid = torch.from_numpy(np.arange(LONGEST) < lengths[:, None])
        labels = (((tokens < VOCABULARY // 2) & valid).sum(1) > valid.sum(1) / 2).long()
        total = 0.0
        optimizer.zero_grad()
        for ids in deal(lengths, sort):
            longest = lengths[ids].max()
            with torch.autocast("cpu", DTYPES[precision], enabled=precision != "fp32"):
                scores = model(tokens[ids, :longest], valid[ids, :longest])
            loss = nn.functional.cross_entropy(scores.float(), labels[ids], reduction="sum")
            (loss / (BATCH if weighted else len(ids) * RANKS)).backward()
            total += loss.item() / BATCH
        optimizer.step()
        found.append(total)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("precision", DTYPES)
def test_rounding_is_no_finding_and_a_wrong_weight_is_one(launch, precision):
    fields = {"steps": STEPS - 5, "warmup_steps": 5, "overrides": (f"train.precision={precision}",)}
    runs = launch(1, static=fields, partition=fields)
    static = losses(precision, 0, sort=False)

    def judged(dealt):
        """The finding on losses, None without one, and their largest difference."""
        both = {"static": static, "partition": dealt}
        arms = {name: [with_steps(runs[name][0], loss_global=pl.Series(each))] for name, each in both.items()}
        seen = [finding for finding in findings(arms) if finding.id == "loss_parity"]
        return next(iter(seen), None), compare(arms)[0].loss_max_rel_diff

    right, difference = judged(losses(precision, 0, sort=True))
    assert right is None
    wrong, apart = judged(losses(precision, 0, sort=True, weighted=False))
    limit = wrong.values["tolerance"]
    assert wrong.severity == "fail"
    assert 3 * difference < limit < apart, "room for larger models, and for smaller faults"
    assert wrong.values["precision"] == precision and wrong.values["steps"] == STEPS
