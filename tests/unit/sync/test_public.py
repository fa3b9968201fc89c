"""The public classes on a group of one rank: buckets, what they refuse, and what importing them costs."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from types import ModuleType

import pytest
import torch
from torch import nn

from dynbench import compress, sync
from dynbench.errors import UsageError
from dynbench.sync import BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP
from dynbench.sync.synchronised import SynchronisedModule

pytestmark = pytest.mark.usefixtures("alone")
PUBLIC = (NaiveDDP, FlatDDP, OverlapDDP, BucketedDDP)
KIB = 2**-10


def layers(*sizes: int) -> nn.Module:
    """A vector each of so many floats."""
    module = nn.Module()
    for number, size in enumerate(sizes):
        module.register_parameter(f"p{number}", nn.Parameter(torch.ones(size)))
    module.forward = lambda: sum(p.sum() for p in module.parameters())  # type: ignore[method-assign]
    return module


@pytest.mark.parametrize(
    ("size_kib", "buckets"),
    [
        (0.5, [["p3"], ["p2", "p1"], ["p0"]]),  # 128 floats
        (1, [["p3"], ["p2", "p1"], ["p0"]]),
        (1.25, [["p3"], ["p2", "p1", "p0"]]),
        (None, [["p3", "p2", "p1", "p0"]]),
        (0.001, [["p3"], ["p2"], ["p1"], ["p0"]]),
    ],
)
def test_buckets_go_backwards_and_never_above_the_limit_but_for_one_larger_parameter(
    size_kib: float | None, buckets: list[list[str]]
) -> None:
    made = BucketedDDP(layers(129, 64, 64, 300), None if size_kib is None else size_kib * KIB)
    assert made.buckets == buckets


def test_types_do_not_share_a_bucket() -> None:
    module = layers(4, 4, 4)
    module.p1 = nn.Parameter(torch.ones(4, dtype=torch.float64))
    assert BucketedDDP(module, None).buckets == [["p2"], ["p1"], ["p0"]]


def test_gradients_are_views_into_buckets_also_after_they_were_cleared() -> None:
    made = BucketedDDP(layers(4, 4), None)
    for _ in range(2):
        made().backward()
        made.finish_gradient_synchronization()
        first, second = (parameter.grad for parameter in made.parameters())
        assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        made.zero_grad(set_to_none=True)


@pytest.mark.parametrize("make", [OverlapDDP, BucketedDDP])
def test_a_second_backward_pass_before_the_gradients_met_is_an_error(make: type[SynchronisedModule]) -> None:
    made = make(layers(4, 4))
    made().backward()
    with pytest.raises(UsageError, match="p1 got a gradient twice in a step"):
        made().backward()


@pytest.mark.parametrize("make", PUBLIC)
def test_gradients_add_up_without_being_sent(make: type[SynchronisedModule]) -> None:
    made = make(layers(4))
    sent = []
    inner = made._wire.mean
    made._wire.mean = lambda *given: sent.append(None) or inner(*given)  # type: ignore[method-assign]
    with made.no_sync():
        made().backward()
        made().backward()
    assert not sent
    made().backward()
    made.finish_gradient_synchronization()
    assert len(sent) == 1
    assert made.module.p0.grad.tolist() == [3.0] * 4


@pytest.mark.parametrize("make", PUBLIC)
def test_the_module_s_own_forward_state_and_names(make: type[SynchronisedModule]) -> None:
    given = nn.Linear(2, 3)
    made = make(given)
    assert made.module is given
    assert torch.equal(made(input=torch.ones(1, 2)), given(torch.ones(1, 2)))
    assert [name for name, _ in made.named_parameters()] == ["module.weight", "module.bias"]


@pytest.mark.parametrize("make", PUBLIC)
def test_what_cannot_be_averaged_is_refused(make: type[SynchronisedModule]) -> None:
    frozen = layers(4, 4)
    frozen.p0.requires_grad_(False)
    made = make(frozen)
    frozen.p0.requires_grad_(True)
    with pytest.raises(UsageError, match="p0 was frozen when it was wrapped"):
        made.finish_gradient_synchronization()
    sparse = make(nn.Embedding(4, 2, sparse=True))
    with pytest.raises(UsageError, match=r"a gradient of layout .* cannot be averaged"):
        sparse(torch.tensor([1])).sum().backward()
        sparse.finish_gradient_synchronization()
    for size in (0, -1.0):
        with pytest.raises(UsageError, match=f"bucket_size_mb: {size} MiB, expected a number above 0"):
            BucketedDDP(layers(4), size)


@pytest.mark.parametrize("make", [OverlapDDP, BucketedDDP])
def test_closing_lets_go_of_the_module(make: type[SynchronisedModule]) -> None:
    given = layers(4)
    made = make(given)
    made().backward()
    made.finish_gradient_synchronization()
    made.close()
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
    given.forward().backward()


@pytest.mark.slow
def test_the_classes_come_without_the_rest_of_dynbench() -> None:
    names = ", ".join(sync.__all__)
    program = (
        "import sys, dynbench.sync\n"
        "assert 'torch' not in sys.modules\n"
        f"from dynbench.sync import {names}\n"
        "heavy = ('pydantic', 'transformers', 'polars', 'datasets', 'matplotlib', 'dynbench.config.schema')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("module", [sync, compress])
def test_public_names_are_classes_or_functions_and_no_other_name_is_there(module: ModuleType) -> None:
    assert all(callable(getattr(module, name)) for name in module.__all__)
    with pytest.raises(AttributeError, match="NoSuchName"):
        module.NoSuchName  # noqa: B018
