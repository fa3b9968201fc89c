"""Small models whose parameters are tied, frozen, unused, used without calling their block, or few."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from dynbench.engine.rank.toy_check import VOCABULARY, toy_model


class SmallGpt2(nn.Module):
    """The logits behind a row's last token."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": VOCABULARY}
        drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        self.inner = GPT2LMHeadModel(GPT2Config(**sizes, **drops, use_cache=False))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.inner(tokens).logits[:, -1]


class UsesWeights(nn.Module):
    """Blocks whose weights are used without calling them, and one whose weight is used before it is called, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.by_hand = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2))
        self.tied = nn.ModuleList([nn.Sequential(nn.Linear(16, VOCABULARY))])
        self.tied[0][0].weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens).mean(1)
        for block in self.by_hand:
            hidden = hidden + nn.functional.linear(hidden, block[0].weight, block[0].bias).tanh()
        return self.tied[0](hidden)


class TiedBlock(nn.Module):
    """The last block scores with the embedding's weight; a buffer is also a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.norm = nn.BatchNorm1d(16, dtype=torch.float64).eval()
        self.norm.running_var.mul_(2)
        self.same = self.norm.running_var
        last = nn.Sequential(nn.Linear(16, VOCABULARY))
        self.blocks = nn.ModuleList([*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)), last])
        last[0].weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.embed(tokens).mean(1))
        for block in self.blocks:
            hidden = block(hidden)
        return hidden + self.same.sum()


class OneWeight(nn.Module):
    """Fewer elements to train than ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.one_hot(tokens[:, 0], VOCABULARY).to(self.weight) * self.weight


def seeded(kind: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Builds a model in double precision, the same wherever it is built."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        return kind().double()

    return build


MODELS = {
    "toy": toy_model,
    "gpt2": seeded(SmallGpt2),
    "uses_weights": seeded(UsesWeights),
    "tied_block": seeded(TiedBlock),
    "one_weight": seeded(OneWeight),
}
