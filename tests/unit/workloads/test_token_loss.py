"""The loss over tokens is torch's own, forward and backward, in pieces, over the logits where these need not stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dynbench.kernels.packed_attention import NO_TARGET
from dynbench.workloads import token_loss
from dynbench.workloads.token_loss import summed_cross_entropy

ROWS, VOCABULARY, WIDTH = 23, 11, 5
MAKERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda hidden, weight: F.linear(hidden, weight),
    "linear, seen otherwise": lambda hidden, weight: F.linear(hidden[None], weight).flatten(0, 1),
    "raised": lambda hidden, weight: F.linear(hidden.bfloat16(), weight.bfloat16()).float(),
    "capped": lambda hidden, weight: torch.tanh(F.linear(hidden, weight)),
    "capped, seen otherwise": lambda hidden, weight: torch.tanh(F.linear(hidden[None], weight)).flatten(0, 1),
    "given": lambda hidden, weight: weight.T[torch.arange(ROWS) % WIDTH],
}
OVERWRITTEN = {"linear", "linear, seen otherwise", "raised"}


def torchs_own(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="sum", ignore_index=NO_TARGET)


def losses(make: str, loss: Callable[[Tensor, Tensor], Tensor]) -> tuple[list[Tensor], bool]:
    """The loss and the gradients of what made the logits; and whether the gradient lay where the logits were."""
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=random).requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64, generator=random).requires_grad_()
    labels = torch.randint(0, VOCABULARY, (ROWS,), generator=random)
    labels[torch.rand(ROWS, generator=random) >= 0.7] = NO_TARGET
    logits, places = MAKERS[make](hidden, weight), []
    logits.register_hook(lambda gradient: places.append(gradient.data_ptr()))
    found = loss(logits, labels)
    (found / 3).backward()
    gradients = [torch.zeros(()) if of.grad is None else of.grad for of in (hidden, weight)]
    return [found.detach(), *gradients], places == [logits.data_ptr()]


@pytest.mark.parametrize("piece", [1, 4 * VOCABULARY, 2**20])
@pytest.mark.parametrize("make", MAKERS)
def test_it_is_torchs_own_in_pieces(monkeypatch, make, piece):
    monkeypatch.setattr(token_loss, "PIECE", piece)
    wanted, _ = losses(make, torchs_own)
    found, over = losses(make, summed_cross_entropy)
    tolerance = 1e-2 if make == "raised" else 1e-12
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert over == (make in OVERWRITTEN)
