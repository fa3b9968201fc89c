"""What every compressor of the registry makes of a tensor, wrong ones caught by the same judges; numbers packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from compressors import ELSEWHERE, FORMS, NAMED, averager, codec, compressor, on_threads, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dynbench.compress import Codec, CompressedMean, Int8, Known, Natural, OneBit, Payload, Qsgd, RandomK, SignSgd, TopK
from dynbench.compress.base import normal, numbers, seed_of, some_of
from dynbench.compress.codec import Fields
from dynbench.compress.message import coding, index_field, pack, packed_bytes, read_indices, unpack, write_indices
from dynbench.config.schema import Compress
from dynbench.errors import UsageError
from dynbench.plugins import COMPRESSORS
from dynbench.wire.segment import lay_out

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
CONTRACTIVE = [form for form in FORMS if codec(form).contractive]
UNBIASED = [*(form for form in FORMS if not codec(form).contractive), "bf16 rounding=stochastic"]
KINDS = {
    "normal": lambda drawn: drawn,
    "heavy": lambda drawn: drawn**5,
    "tiny": lambda drawn: drawn * 1e-37,
    "negative": lambda drawn: -drawn.abs(),
    "zeros": torch.zeros_like,
}


def values_of(shape: Sequence[int], seed: int, kind: str = "normal") -> Tensor:
    return KINDS[kind](torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed)))


kinds, seeds = st.sampled_from([*KINDS]), st.integers(0, 9)


def round_trip(made: Codec, tensor: Tensor) -> Tensor:
    """What comes back, once the payload was judged."""
    before = tensor.clone()
    payload = made.compress(tensor, Known(seed=3))
    torch.testing.assert_close(tensor, before, rtol=0, atol=0, equal_nan=True)
    fields = made.fields(tensor.numel(), payload.known)
    written = [(each.dtype, each.numel()) for each in payload.tensors]
    assert [(each.dtype, each.length) for each in fields] == written, "accounted"
    assert payload.nbytes == sum(field.nbytes for field in fields)
    found = made.decompress(payload)
    assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
    return found


def off_by(made: Codec, tensor: Tensor) -> float:
    """The square of what is lost."""
    return float((tensor - round_trip(made, tensor)).double().square().sum())


def test_every_compressor_is_tried() -> None:
    of_codecs = {form.split()[0]: form for form in reversed(FORMS)}
    assert set(of_codecs) == set(NAMED) - set(ELSEWHERE)
    for name, form in of_codecs.items():
        entry = COMPRESSORS[name]
        assert entry.feedback == codec(form).leaves_out
        assert entry.paper and entry.collectives and entry.bias
    assert COMPRESSORS["none"].load()(Compress()) is None, "nothing is compressed without a queue"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20)
@given(
    shape=st.lists(st.integers(0, 40), max_size=3),
    dtype=st.sampled_from(TYPES),
    kind=kinds,
    seed=seeds,
    turned=st.booleans(),
)
def test_shape_and_type_come_back_and_finite_stays_finite(
    form: str, shape: list[int], dtype: torch.dtype, kind: str, seed: int, turned: bool
) -> None:
    tensor = values_of(shape, seed, kind).to(dtype)
    tensor = tensor.T if turned and tensor.dim() == 2 else tensor[..., ::2] if turned and tensor.dim() else tensor
    found = round_trip(codec(form), tensor)
    assert found.isfinite().all()
    if kind == "zeros":
        assert not found.any()


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
    begins = range(0, n, 2**22)
    sent, given = (torch.stack([of[at : at + part] for at in begins]).double() for of in (found, tensor))
    assert sent.isfinite().all()
    least = 0.9 * made.kept(n, payload.known) / n
    assert float((sent != 0).double().mean()) >= min(least, 0.3)
    assert sent.any(1).all(), "of every part something is sent"
    alike = float((sent * given).sum() / (sent.norm() * given.norm()))
    assert alike > 0.09, f"it points where it should, {alike}"


@pytest.mark.parametrize("form", FORMS)
def test_draws_follow_the_seed_and_leave_torch_s_generator_alone(form: str) -> None:
    tensor, before = values_of([500], 2), torch.get_rng_state()
    first, again, other = (codec(form).compress(tensor, Known(seed=seed)).tensors for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(same_bits, zip(first, again, strict=True)))
    drawn = form in UNBIASED or form.startswith("randomk")
    assert all(map(same_bits, zip(first, other, strict=True))) != drawn


def judge_unbiased(made: Codec, draws: int = 1000) -> None:
    """The mean of many draws is what is compressed, within five standard errors, or five draws of what is rare."""
    tensor = values_of([96], 4)
    tensor += 0.3 * tensor.sign()
    drawn = torch.stack([made.decompress(made.compress(tensor, Known(seed=seed))) for seed in range(draws)]).double()
    error = (drawn.mean(0) - tensor).abs()
    assert bool((error <= 5 * drawn.std(0) / draws**0.5 + 5 / draws * tensor.abs()).all()), "unbiased"


@pytest.mark.slow
@pytest.mark.parametrize("form", UNBIASED)
def test_unbiased_forms_have_the_right_mean(form: str) -> None:
    assert "no" in COMPRESSORS[form.split()[0]].bias
    judge_unbiased(codec(form))


def judge_contraction(made: Codec, tensor: Tensor, bound: float = 1.0) -> None:
    limit = bound * float(tensor.double().square().sum()) * (1 + 1e-5) + 1e-60
    assert off_by(made, tensor) <= limit, "contracts"


@pytest.mark.parametrize("form", CONTRACTIVE)
@settings(max_examples=10)
@given(n=st.integers(1, 3000), kind=kinds, seed=seeds)
def test_what_is_left_out_is_no_more_than_there_was(form: str, n: int, kind: str, seed: int) -> None:
    judge_contraction(codec(form), values_of([n], seed, kind).half().float())


@given(n=st.integers(1, 3000), ratio=st.floats(0.001, 1), kind=kinds, seed=seeds)
def test_topk_leaves_out_at_most_its_share(n: int, ratio: float, kind: str, seed: int) -> None:
    made, tensor = TopK(ratio), values_of([n], seed, kind)
    k = made.kept(n, Known())
    assert k - max(1, int(ratio * n)) in (0, 1), "GRACE rounds down"
    judge_contraction(made, tensor, 1 - k / n)
    found = round_trip(made, tensor)
    assert int((found != 0).sum()) <= k
    assert torch.equal(found[found != 0], tensor[found != 0])


@given(n=st.integers(1, 2000), kind=kinds, seed=seeds)
def test_the_error_of_scaled_signs_is_the_known_one(n: int, kind: str, seed: int) -> None:
    tensor = values_of([n], seed, kind).half().float()
    whole = float(tensor.double().square().sum())
    wanted = whole - float(tensor.double().abs().sum()) ** 2 / n
    error = off_by(SignSgd(), tensor)
    assert error == pytest.approx(wanted, abs=1e-5 * whole + 1e-12)
    assert off_by(OneBit(), tensor) <= error + 1e-5 * whole + 1e-12


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


def sent_by(made: Codec, given: Sequence[Tensor]) -> tuple[Known, list[Payload]]:
    """What ranks with these gradients know together, and send."""
    number = torch.stack([made.measure(each.view(-1)).double() for each in given]).amax() if made.measures else None
    known = Known(seed=1, ranks=len(given), number=number)
    return known, [made.compress(each, replace(known, rank=rank)) for rank, each in enumerate(given)]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_sums_of_integers_are_exact(bits: int, ranks: int) -> None:
    """The mean of the ranks' levels, and no level of one rank runs into another's."""
    made, levels = Int8(bits), (2 ** (bits - 1) - 1) // ranks  # type: ignore[arg-type]
    if levels < 2:
        with pytest.raises(UsageError, match=f"{bits} bits have less than 2 levels for each of {ranks} ranks"):
            made.check_ranks(ranks)
        return
    given = [values_of([777], seed) for seed in range(ranks)]
    for each in given:
        each[:4] = torch.tensor([9.0, -9.0, 9.0, -9.0])  # where all have the greatest, sums are the greatest
    known, payloads = sent_by(made, given)
    alone = torch.stack([made.decompress(payload) for payload in payloads])
    torch.testing.assert_close(made.aggregate(payloads), alone.mean(0), rtol=1e-5, atol=1e-5)
    assert float((alone - torch.stack(given)).abs().max()) <= float(known.number) / levels / 2 * 1.001


@pytest.mark.parametrize("form", FORMS)
def test_what_is_aggregated_is_the_mean_of_what_was_sent(form: str) -> None:
    made, given = codec(form), [values_of([31, 20], seed) for seed in (1, 2)]
    _, payloads = sent_by(made, given)
    found = made.aggregate(payloads)
    if isinstance(made, SignSgd) and made.vote:
        agree = given[0].sign() == given[1].sign()
        assert not found[~agree].any(), "a tied vote"
        assert torch.equal(found[agree].sign(), given[0].sign()[agree])
        return
    wanted = torch.stack([made.decompress(payload) for payload in payloads]).mean(0)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_the_vote_of_more_samples_wins() -> None:
    made = SignSgd()
    votes = [
        made.compress(torch.full((5,), value), Known(rank=rank, weight=weight))
        for rank, (value, weight) in enumerate([(1.0, 3.0), (-2.0, 4.0)])
    ]
    assert made.aggregate(votes).tolist() == [-1.5] * 5


def test_bits_are_packed() -> None:
    tensor = values_of([200_000], 3)
    for form, least in {
        "signsgd error_feedback=false": 31.9,
        "onebit": 31.9,
        "topk ratio=0.01": 70,
        "int8": 4,
        "qsgd bits=2": 15,
        "qsgd bits=4": 7.8,
        "randomk ratio=0.01": 99,
    }.items():
        assert tensor.nbytes / codec(form).compress(tensor).nbytes >= least, form


def test_error_feedback_with_an_unbiased_form_is_refused() -> None:
    for made in (Qsgd(), Natural(), RandomK()):
        with pytest.raises(UsageError, match=f"{made.name} diverges with it") as caught:
            CompressedMean(made, error_feedback=True)
        assert "contractive" in caught.value.hint


def test_settings_reach_the_codec() -> None:
    assert averager("qsgd shared_seed=7").seed == 7
    assert averager("topk").error_feedback and not averager("fp8").error_feedback
    assert averager("signsgd").codec.vote is False and averager("signsgd error_feedback=false").codec.vote is True


class ClaimsLess(TopK):
    """Fault: once it has written, it claims fewer bytes than it wrote."""

    has_written = False

    def fields(self, n: int, known: Known) -> Fields:
        one, two = super().fields(n, known)
        return (replace(one, length=one.length // 2), two) if self.has_written else (one, two)

    def compress(self, tensor: Tensor, known: Known | None = None) -> Payload:
        payload = super().compress(tensor, known)
        self.has_written = True
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
        round_trip(ClaimsLess(), tensor)
    with pytest.raises(AssertionError, match="contracts"):
        judge_contraction(Smallest(0.1), tensor, 1 - 40 / 400)
    for biased in (RoundsDown(), Qsgd(contractive=True), RandomK(0.25, contractive=True)):
        with pytest.raises(AssertionError, match="unbiased"):
            judge_unbiased(biased)


@given(bits=st.sampled_from([1, 2, 4, 8]), n=st.integers(0, 70), seed=st.integers(0, 99))
def test_what_is_packed_comes_back(bits: int, n: int, seed: int) -> None:
    codes = torch.from_numpy(np.random.default_rng(seed).integers(0, 2**bits, n).astype(np.uint8))
    packed = torch.empty(packed_bytes(n, bits), dtype=torch.uint8)
    pack(codes, bits, packed)
    assert torch.equal(unpack(packed, bits, n), codes)
    assert sum(int(code) << bits * place for place, code in enumerate(codes)) == int.from_bytes(
        bytes(packed.tolist()), "little"
    )


def survive(indices: torch.Tensor, n: int, most: int) -> bool:
    """Whether indices come back that are written where at most so many may be."""
    field = index_field(n, most)
    written = torch.empty(field.length, dtype=field.dtype)
    write_indices(indices, n, most, written)
    return torch.equal(read_indices(written, n, most), indices)


@given(n=st.integers(1, 300_000), share=st.floats(0, 1), fewer=st.booleans(), seed=st.integers(0, 99))
def test_indices_come_back(n: int, share: float, fewer: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    most = min(n, int(share**4 * n))
    indices = np.sort(random.choice(n, most // 2 if fewer else most, replace=False))
    assert survive(torch.from_numpy(indices), n, most)


@pytest.mark.parametrize("n", [254, 255, 256, 510, 65534, 65535, 65536, 131070, 1_000_000])
def test_a_single_index_at_either_end(n: int) -> None:
    for index in (0, n - 1):
        for most in (1, 3, n // 100 + 1, n // 2 + 1):
            assert survive(torch.tensor([index]), n, most)


def test_the_smallest_form_is_taken() -> None:
    n = 1_000_000
    for share, form, bytes_each in ((0.0005, "delta16", 2.1), (0.01, "delta8", 1.4), (0.2, "bitmap", 0.63)):
        assert coding(n, int(share * n)) == form
        assert index_field(n, int(share * n)).nbytes <= bytes_each * share * n


@given(n=st.integers(1, 5000), share=st.floats(0, 1), seed=st.integers(0, 2**62))
def test_draws_are_different_and_rising(n: int, share: float, seed: int) -> None:
    k = max(1, int(share * n))
    found = some_of(n, k, seed, torch.empty(0))
    assert len(found) == k and bool((found.diff() > 0).all()) and int(found[0]) >= 0 and int(found[-1]) < n


@pytest.mark.slow
def test_every_element_is_as_likely_as_any_other() -> None:
    draws = 4000
    for k in (3, 12):  # by drawing again and again, and by a permutation
        counts = torch.zeros(24)
        for seed in range(draws):
            counts[some_of(24, k, seed, counts)] += 1
        expected, spread = draws * k / 24, (draws * k / 24 * (1 - k / 24)) ** 0.5
        assert float((counts - expected).abs().max()) < 5 * spread


def splitmix64(seed: int, place: int) -> int:
    """One number of it, as it is written."""
    mask = 2**64 - 1
    mixed = (seed + (place + 1) * 0x9E3779B97F4A7C15) & mask
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & mask
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
    return mixed ^ mixed >> 31


@given(seed=st.integers(0, 2**63 - 1), first=st.integers(0, 2**40))
def test_numbers_follow_from_whole_numbers_alone(seed: int, first: int) -> None:
    """Which every device computes alike."""
    found = numbers(seed, torch.arange(first, first + 8)).tolist()
    assert found == [splitmix64(seed, place) % 2**63 for place in range(first, first + 8)]


@pytest.mark.parametrize("form", ["randomk ratio=0.25", "randomk ratio=0.9", "powersgd rank=2"])
def test_what_ranks_have_to_draw_alike_asks_no_generator_of_torch(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of GPUs that are not of one kind draw others from one seed."""
    flat, segments = torch.randn(64 * 32), lay_out([("weight", (64, 32))])
    monkeypatch.setattr(torch, "Generator", lambda *_: pytest.fail("a generator of the device"))
    for name in ("rand", "randn", "randint", "randperm"):
        monkeypatch.setattr(torch, name, lambda *_, **__: pytest.fail("a generator of the device"))
    on_threads(2, lambda channel: compressor(form).mean(channel, flat.clone(), segments))


def test_normal_numbers_are_such() -> None:
    drawn = normal(5, (1000, 1000), torch.empty(0)).double()
    assert drawn.shape == (1000, 1000)
    moments = [float((drawn**power).mean()) for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.02)
    assert float((drawn < 1).double().mean()) == pytest.approx(0.8413, abs=0.002)


def test_names_made_of_the_same_letters_share_no_seed() -> None:
    assert len({seed_of(0, name, step) for name in ("ab", "ba", "a", "b") for step in range(50)}) == 200
