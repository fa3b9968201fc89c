"""What every compressor of the registry that is ours makes of gradients of two ranks, however odd they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compressors import ELSEWHERE, FORMS, NAMED, OWN, compressor, on_threads, same_bits
from torch import Tensor

from dynbench.compress.compressing import Compressing
from dynbench.wire.segment import lay_out

SHAPES = {"weight": (24, 16), "nothing": (0,), "one": (1,), "bias": (31,)}
SEGMENTS = lay_out(SHAPES.items())
SIZE = SEGMENTS[-1].offset + SEGMENTS[-1].numel
EVERY = (*FORMS, *OWN)


def drawn(rank: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(rank))


def with_one(value: float) -> Callable[[int], Tensor]:
    """Ranks' gradients, of which the first has an element of this value."""
    return lambda rank: drawn(rank).index_fill(0, torch.tensor([100 * (1 - rank)]), value if rank == 0 else 0.5)


ODD: dict[str, Callable[[int], Tensor]] = {
    "drawn": drawn,
    "zeros": lambda rank: torch.zeros(SIZE),
    "negative": lambda rank: -drawn(rank).abs() - 0.1,
    "tiny": lambda rank: drawn(rank) * 1e-37,
    "one rank has none": lambda rank: drawn(rank) * rank,
    "half": lambda rank: drawn(rank).half(),
    "bfloat16": lambda rank: drawn(rank).bfloat16(),
    "double": lambda rank: drawn(rank).double(),
    "every other element": lambda rank: drawn(rank).repeat_interleave(2)[::2].contiguous(),
    "infinite": with_one(torch.inf),
    "no number": with_one(torch.nan),
}


def judge(make: Callable[[], Compressing], case: str) -> None:
    """What both ranks get of a case, once and once more after it.

    Args:
        make: a new compressor.
        case: of `ODD`.
    """
    is_finite = case not in ("infinite", "no number")

    def work(channel: Any) -> list[Tensor]:
        made, found = make(), []
        for given in (ODD[case](channel.rank), drawn(channel.rank)):
            flat = given.clone()
            made.mean(channel, flat, SEGMENTS)
            assert (flat.shape, flat.dtype) == (given.shape, given.dtype)
            found.append(flat)
        return found

    first, second = on_threads(2, work)
    assert all(same_bits(pair) for pair in zip(first, second, strict=True)), "one mean on all ranks"
    assert bool(first[0].isfinite().all()) == is_finite, "what is not finite stays so"
    assert bool(first[1].isfinite().all()), "and does not come back"
    if case == "zeros":
        assert not first[0].any()


def test_every_compressor_is_among_them() -> None:
    assert {form.split()[0] for form in EVERY} == set(NAMED) - {"fp16_torch"}
    assert {"fp16_torch"} == set(ELSEWHERE) - {form.split()[0] for form in OWN}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("form", EVERY)
def test_odd_gradients(form: str, case: str) -> None:
    judge(lambda: compressor(form), case)


@pytest.mark.parametrize("form", EVERY)
def test_nothing_at_all(form: str) -> None:
    """A flat gradient of no elements, as of a model whose parameters have none."""
    empty = lay_out([("nothing", (0,))])

    def work(channel: Any) -> int:
        flat = torch.zeros(0)
        compressor(form).mean(channel, flat, empty)
        return len(flat)

    assert on_threads(2, work) == [0, 0]


class Cleans(Compressing):
    """Fault: what is not finite is left out."""

    def _mean(self, channel: Any, flat: Tensor, segments: Any) -> None:
        channel.all_reduce(flat.nan_to_num_(0, 0, 0).div_(channel.world_size)).wait()


class OwnHalf(Compressing):
    """Fault: a rank keeps what it had of its own."""

    def _mean(self, channel: Any, flat: Tensor, segments: Any) -> None:
        own = flat.clone()
        channel.all_reduce(flat.div_(channel.world_size)).wait()
        flat[channel.rank :: 2] = own[channel.rank :: 2]


@pytest.mark.parametrize(
    ("wrong", "case", "said"), [(Cleans, "infinite", "stays so"), (OwnHalf, "drawn", "one mean on all ranks")]
)
def test_wrong_ones_are_caught(wrong: type[Compressing], case: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        judge(lambda: wrong(error_feedback=False), case)
