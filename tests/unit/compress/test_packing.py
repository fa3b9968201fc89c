"""Numbers packed to the bit, and indices in few bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compressors import compressor, on_threads
from hypothesis import given
from hypothesis import strategies as st

from dynbench.compress.base import normal, numbers, seed_of, some_of
from dynbench.compress.message import coding, index_field, pack, packed_bytes, read_indices, unpack, write_indices
from dynbench.wire.segment import lay_out


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


@pytest.mark.parametrize(
    ("share", "form", "bytes_each"), [(0.0005, "delta16", 2.1), (0.01, "delta8", 1.4), (0.2, "bitmap", 0.63)]
)
def test_the_smallest_form_is_taken(share: float, form: str, bytes_each: float) -> None:
    n = 1_000_000
    assert coding(n, int(share * n)) == form
    assert index_field(n, int(share * n)).nbytes <= bytes_each * share * n


@given(n=st.integers(1, 5000), share=st.floats(0, 1), seed=st.integers(0, 2**62))
def test_draws_are_different_and_rising(n: int, share: float, seed: int) -> None:
    k = max(1, int(share * n))
    found = some_of(n, k, seed, torch.empty(0))
    assert len(found) == k and bool((found.diff() > 0).all()) and int(found[0]) >= 0 and int(found[-1]) < n


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
    assert drawn.shape == (1000, 1000) and bool(drawn.isfinite().all())
    moments = [float((drawn**power).mean()) for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.02)
    assert float((drawn < 1).double().mean()) == pytest.approx(0.8413, abs=0.002)


def test_names_made_of_the_same_letters_share_no_seed() -> None:
    assert len({seed_of(0, name, step) for name in ("ab", "ba", "a", "b") for step in range(50)}) == 200
