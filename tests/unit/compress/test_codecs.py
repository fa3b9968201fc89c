"""What every compressor of the registry makes of a tensor; wrong ones are caught by the same judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from compressors import ELSEWHERE, FORMS, NAMED, averager, codec
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dynbench import compress
from dynbench.compress import Codec, CompressedMean, Int8, Known, Natural, OneBit, Qsgd, RandomK, SignSgd, TopK
from dynbench.compress.codec import Fields
from dynbench.errors import UsageError
from dynbench.plugins import COMPRESSORS

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
UNBIASED = [form for form in FORMS if not codec(form).contractive]
UNBIASED.append("bf16 rounding=stochastic")
CONTRACTIVE = [form for form in FORMS if codec(form).contractive]


def values_of(shape: Sequence[int], seed: int, kind: str = "normal") -> Tensor:
    found = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))
    if kind == "heavy":
        found = found**5
    elif kind == "tiny":
        found = found * 1e-37
    elif kind == "negative":
        found = -found.abs()
    elif kind == "zeros":
        found = torch.zeros(tuple(shape))
    return found


shapes = st.lists(st.integers(0, 40), max_size=3)
kinds = st.sampled_from(["normal", "heavy", "tiny", "negative", "zeros"])


def round_trip(made: Codec, tensor: Tensor) -> Tensor:
    """What comes back, once the payload was judged."""
    before = tensor.clone()
    payload = made.compress(tensor, Known(seed=3))
    torch.testing.assert_close(tensor, before, rtol=0, atol=0, equal_nan=True)
    fields = made.fields(tensor.numel(), payload.known)
    assert [(each.dtype, each.length) for each in fields] == [(t.dtype, t.numel()) for t in payload.tensors], (
        "accounted"
    )
    assert payload.nbytes == sum(field.nbytes for field in fields)
    found = made.decompress(payload)
    assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
    return found


def test_every_compressor_is_tried() -> None:
    assert {form.split()[0] for form in FORMS} == set(NAMED) - set(ELSEWHERE)
    for name in sorted(set(NAMED) - set(ELSEWHERE)):
        assert COMPRESSORS[name].feedback == codec(next(f for f in FORMS if f.split()[0] == name)).leaves_out
        assert COMPRESSORS[name].paper and COMPRESSORS[name].collectives and COMPRESSORS[name].bias


def test_the_public_names_are_there() -> None:
    assert all(isinstance(getattr(compress, name), type) for name in compress.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        compress.nothing  # noqa: B018


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20)
@given(shape=shapes, dtype=st.sampled_from(TYPES), kind=kinds, seed=st.integers(0, 9), turned=st.booleans())
def test_shape_and_type_come_back_and_finite_stays_finite(
    form: str, shape: list[int], dtype: torch.dtype, kind: str, seed: int, turned: bool
) -> None:
    tensor = values_of(shape, seed, kind).to(dtype)
    tensor = tensor.T if turned and tensor.dim() == 2 else tensor[..., ::2] if turned and tensor.dim() else tensor
    found = round_trip(codec(form), tensor)
    assert found.isfinite().all()
    if kind == "zeros":
        assert not found.any()


@pytest.mark.parametrize("value", [2.5, -2.5, 0.0])
@pytest.mark.parametrize("form", FORMS)
def test_one_element(form: str, value: float) -> None:
    found = round_trip(codec(form), torch.tensor([value]))
    if not codec(form).contractive:
        assert abs(float(found)) <= 8 * abs(value)
    else:
        assert float(found) == pytest.approx(value, rel=0.3)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_stays_so(form: str, value: float) -> None:
    tensor = values_of([300], 1)
    tensor[123] = value
    assert not round_trip(codec(form), tensor).isfinite().all()


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("form", FORMS)
def test_a_gigabyte(form: str) -> None:
    """Of which a part of every 16 MB is looked at: what indices, sizes and sums of many elements would go wrong in."""
    made, n, part = codec(form), 2**28, 2**12
    tensor = torch.empty(n).normal_(generator=torch.Generator().manual_seed(1))
    payload = made.compress(tensor, Known(seed=3))
    assert payload.nbytes == sum(field.nbytes for field in made.fields(n, payload.known))
    found = made.decompress(payload)
    assert found.shape == tensor.shape
    parts = torch.arange(0, n, 2**22)
    sent = torch.stack([found[begin : begin + part] for begin in parts.tolist()]).double()
    given = torch.stack([tensor[begin : begin + part] for begin in parts.tolist()]).double()
    assert sent.isfinite().all()
    least = 0.9 * made.kept(n, payload.known) / n
    assert float((sent != 0).double().mean()) >= min(least, 0.3) and sent.any(1).all(), (
        "of every part something is sent"
    )
    alike = float((sent * given).sum() / (sent.norm() * given.norm()))
    assert alike > 0.09, f"it points where it should, {alike}"


def test_what_is_drawn_and_not_finite_stays_so() -> None:
    tensor = torch.full((40,), torch.nan)
    assert round_trip(RandomK(0.2), tensor).isnan().sum() == 8


@pytest.mark.parametrize("form", FORMS)
def test_draws_follow_the_seed_and_leave_torch_s_generator_alone(form: str) -> None:
    tensor, before = values_of([500], 2), torch.get_rng_state()
    made = codec(form)
    first, again, other = (made.compress(tensor, Known(seed=seed)).tensors for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(first, again, strict=True))
    drawn = form in UNBIASED or form.startswith("randomk")
    same = all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(first, other, strict=True))
    assert same != drawn


def judge_unbiased(made: Codec, draws: int = 1000) -> None:
    """The mean of many draws is what is compressed, within five standard errors, or five draws of what is rare."""
    tensor = values_of([96], 4)
    tensor += 0.3 * tensor.sign()
    drawn = torch.stack([made.decompress(made.compress(tensor, Known(seed=seed))) for seed in range(draws)]).double()
    error = (drawn.mean(0) - tensor).abs()
    assert bool((error <= 5 * drawn.std(0) / draws**0.5 + 5 / draws * tensor.abs()).all()), "unbiased"


@pytest.mark.parametrize("form", UNBIASED)
def test_unbiased_forms_have_the_right_mean(form: str) -> None:
    assert "no" in COMPRESSORS[form.split()[0]].bias
    judge_unbiased(codec(form))


def judge_contraction(made: Codec, tensor: Tensor, bound: float = 1.0) -> None:
    error = (tensor - round_trip(made, tensor)).double().square().sum()
    assert float(error) <= bound * float(tensor.double().square().sum()) * (1 + 1e-5) + 1e-60, "contracts"


@pytest.mark.parametrize("form", CONTRACTIVE)
@settings(max_examples=10)
@given(n=st.integers(1, 3000), kind=kinds, seed=st.integers(0, 9))
def test_what_is_left_out_is_no_more_than_there_was(form: str, n: int, kind: str, seed: int) -> None:
    judge_contraction(codec(form), values_of([n], seed, kind).half().float())


@given(n=st.integers(1, 3000), ratio=st.floats(0.001, 1), kind=kinds, seed=st.integers(0, 9))
def test_topk_leaves_out_at_most_its_share(n: int, ratio: float, kind: str, seed: int) -> None:
    made, tensor = TopK(ratio), values_of([n], seed, kind)
    k = made.kept(n, Known())
    assert k - max(1, int(ratio * n)) in (0, 1), "GRACE rounds down"
    judge_contraction(made, tensor, 1 - k / n)
    found = round_trip(made, tensor)
    assert int((found != 0).sum()) <= k
    assert torch.equal(found[found != 0], tensor[found != 0])


@given(n=st.integers(1, 2000), kind=kinds, seed=st.integers(0, 9))
def test_the_error_of_scaled_signs_is_the_known_one(n: int, kind: str, seed: int) -> None:
    tensor = values_of([n], seed, kind).half().float()
    whole = float(tensor.double().square().sum())
    wanted = whole - float(tensor.double().abs().sum()) ** 2 / n
    error = float((tensor - round_trip(SignSgd(), tensor)).double().square().sum())
    assert error == pytest.approx(wanted, abs=1e-5 * whole + 1e-12)
    onebit = float((tensor - round_trip(OneBit(), tensor)).double().square().sum())
    assert onebit <= error + 1e-5 * whole + 1e-12


@pytest.mark.parametrize(
    ("form", "share"),
    [
        ("fp16", 2**-11),
        ("bf16", 2**-8),
        ("bf16 rounding=stochastic", 2**-7),
        ("fp8", 2**-4),
        ("fp8 format=e5m2", 2**-3),
        ("natural contractive=true", 1 / 3),
    ],
)
def test_rounding_is_as_fine_as_the_type(form: str, share: float) -> None:
    tensor = values_of([4000], 8)
    tensor = tensor[tensor.abs() > 0.05]
    error = (round_trip(codec(form), tensor) - tensor).abs() / tensor.abs()
    assert share / 4 < float(error.max()) <= share * 1.01


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_sums_of_integers_are_exact(bits: int, ranks: int) -> None:
    """The mean of the ranks' levels, and no level of one rank runs into another's."""
    made = Int8(bits)  # type: ignore[arg-type]
    if (2 ** (bits - 1) - 1) // ranks < 2:
        with pytest.raises(UsageError, match=f"{bits} bits have less than 2 levels for each of {ranks} ranks"):
            made.check_ranks(ranks)
        return
    given = [values_of([777], seed) for seed in range(ranks)]
    given[0][:4] = torch.tensor([9.0, -9.0, 9.0, -9.0])
    for each in given[1:]:
        each[:4] = given[0][:4]  # where all have the greatest, sums are the greatest
    number = torch.stack([made.measure(each) for each in given]).amax().double()
    known = Known(ranks=ranks, number=number)
    payloads = [made.compress(each, replace(known, rank=rank)) for rank, each in enumerate(given)]
    alone = torch.stack([made.decompress(payload) for payload in payloads])
    found = made.aggregate(payloads)
    torch.testing.assert_close(found, alone.mean(0), rtol=1e-5, atol=1e-5)
    step = float(number) / ((2 ** (bits - 1) - 1) // ranks)
    assert float((alone - torch.stack(given)).abs().max()) <= step / 2 * 1.001


@pytest.mark.parametrize("form", FORMS)
def test_what_is_aggregated_is_the_mean_of_what_was_sent(form: str) -> None:
    made = codec(form)
    given = [values_of([31, 20], seed) for seed in (1, 2)]
    number = torch.stack([made.measure(each.view(-1)).double() for each in given]).amax() if made.measures else None
    known = Known(seed=1, ranks=2, number=number)
    payloads = [made.compress(each, replace(known, rank=rank)) for rank, each in enumerate(given)]
    found = made.aggregate(payloads)
    if isinstance(made, SignSgd) and made.vote:
        agree = given[0].sign() == given[1].sign()
        assert torch.equal(found[~agree], torch.zeros_like(found[~agree])), "a tied vote"
        assert torch.equal(found[agree].sign(), given[0].sign()[agree])
        return
    wanted = torch.stack([made.decompress(payload) for payload in payloads]).mean(0)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_the_vote_of_more_samples_wins() -> None:
    made = SignSgd()
    ours, theirs = (
        made.compress(torch.full((5,), value), Known(rank=rank, weight=weight))
        for rank, (value, weight) in enumerate([(1.0, 3.0), (-2.0, 4.0)])
    )
    assert made.aggregate([ours, theirs]).tolist() == [-1.5] * 5


def test_random_elements_are_drawn_without_replacement_and_alike_on_all_ranks() -> None:
    tensor = torch.ones(3000)
    made = RandomK(0.3, contractive=True)
    first, second = (made.decompress(made.compress(tensor, Known(seed=4, rank=rank))) for rank in (0, 1))
    assert torch.equal(first, second)
    assert int(first.sum()) == 900
    assert not torch.equal(first, made.decompress(made.compress(tensor, Known(seed=5))))


@pytest.mark.parametrize(
    ("made", "least"),
    [
        (SignSgd(), 31.9),
        (OneBit(), 31.9),
        (TopK(0.01), 70),
        (Int8(), 4),
        (Qsgd(2), 15),
        (Qsgd(4), 7.8),
        (RandomK(), 99),
    ],
    ids=lambda value: value.name if isinstance(value, Codec) else "",
)
def test_bits_are_packed(made: Codec, least: float) -> None:
    tensor = values_of([200_000], 3)
    assert 4 * tensor.numel() / made.compress(tensor).nbytes >= least


def test_error_feedback_with_an_unbiased_form_is_refused() -> None:
    for made in (Qsgd(), Natural(), RandomK()):
        with pytest.raises(UsageError, match=f"{made.name} diverges with it") as caught:
            CompressedMean(made, error_feedback=True)
        assert "contractive" in caught.value.hint


def test_settings_reach_the_codec() -> None:
    made = averager("qsgd bits=8 contractive=true error_feedback=true start_step=3 shared_seed=7")
    assert (made.error_feedback, made.start_step, made.min_elements, made.seed) == (True, 3, 0, 7)
    assert averager("topk").error_feedback and not averager("fp8").error_feedback
    assert averager("signsgd").codec.vote is False and averager("signsgd error_feedback=false").codec.vote is True


class Wrong(TopK):
    """Fault: claims fewer bytes than it writes."""

    def fields(self, n: int, known: Known) -> Fields:
        one, two = super().fields(n, known)
        return (replace(one, length=one.length // 2), two) if self.halves else (one, two)

    halves = False

    def compress(self, tensor: Tensor, known: Known | None = None) -> compress.Payload:
        payload = super().compress(tensor, known)
        self.halves = True
        return payload


class Smallest(TopK):
    """Fault: the smallest elements."""

    def choose(self, values: Tensor, known: Known) -> Tensor:
        return torch.topk(values.abs(), self.kept(len(values), known), largest=False).indices


class RoundsDown(Natural):
    """Fault: always to the lower power."""

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        super().encode(torch.exp2(values.abs().log2().floor()) * values.sign(), known, out)


def test_wrong_compressors_are_caught() -> None:
    tensor = values_of([400], 5, "negative")
    with pytest.raises(AssertionError, match="accounted"):
        round_trip(Wrong(), tensor)
    with pytest.raises(AssertionError, match="contracts"):
        judge_contraction(Smallest(0.1), tensor, 1 - 40 / 400)
    for biased in (RoundsDown(), Qsgd(contractive=True), RandomK(0.25, contractive=True)):
        with pytest.raises(AssertionError, match="unbiased"):
            judge_unbiased(biased)
