"""The mean over ranks, here threads: the same everywhere, and with error feedback nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from compressors import FORMS, averager, codec, on_threads, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dynbench.compress import CompressedMean, Known, TopK
from dynbench.compress.mean import compressor
from dynbench.plugins.compressors import RatioOptions
from dynbench.wire.segment import lay_out

SIZES = {"embed": 301, "bias": 5, "mix": 77, "score": 128, "scale": 1}
FEEDBACK = [f"{form} error_feedback=true" for form in FORMS if codec(form).contractive and "feedback" not in form]
Cut = Sequence[Sequence[str]]
CUTS: list[Cut] = [[list(SIZES)], [["mix", "embed"], ["scale", "bias", "score"]], [[name] for name in reversed(SIZES)]]


def gradient(name: str, rank: int, step: int) -> Tensor:
    source = torch.Generator().manual_seed(1000 * step + 10 * rank + list(SIZES).index(name))
    return torch.randn(SIZES[name], generator=source) * (1 + rank)


def averaged(
    channel: Any, made: CompressedMean, cut: Cut, given: Mapping[str, Tensor], shards: bool = False
) -> dict[str, Tensor]:
    """The means of one step by parameter; of shards what this rank has, and zeros elsewhere."""
    found = {}
    for names in cut:
        segments = lay_out((name, given[name].shape) for name in names)
        flat = torch.cat([given[name] for name in names])
        if shards:
            flat = torch.nn.functional.pad(flat, (0, -len(flat) % channel.world_size))
            shard = torch.full((len(flat) // channel.world_size,), 7.0, dtype=flat.dtype)
            made.mean_shard(channel, flat, segments, shard)
            flat = torch.zeros_like(flat)
            flat.view(channel.world_size, -1)[channel.rank] = shard
        else:
            made.mean(channel, flat, segments)
        found |= {segment.name: segment.of(flat).clone() for segment in segments}
    return found


def trained(form: str, steps: int, shards: bool, cuts: Sequence[Cut] = CUTS) -> Callable[[Any], Any]:
    """Of a rank: its compressor, and of every step the gradients and the means."""

    def work(channel: Any) -> tuple[CompressedMean, list[dict[str, Tensor]]]:
        made, found = averager(form), []
        for step in range(steps):
            given = {name: gradient(name, channel.rank, step) for name in SIZES}
            found.append(averaged(channel, made, cuts[step % len(cuts)], given, shards))
        return made, found

    return work


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("form", FORMS)
def test_every_rank_gets_the_same_bits(form: str, ranks: int) -> None:
    results = on_threads(ranks, trained(form, 2, shards=False))
    for step in range(2):
        for name in SIZES:
            assert same_bits([found[step][name] for _, found in results])


def judge_telescoping(form: str, ranks: int, shards: bool, steps: int = 7) -> None:
    """All that was sent, and what is left out at either stage, are all gradients together."""
    results = on_threads(ranks, trained(form, steps, shards))
    states = [made.state_dict() for made, _ in results]
    for name, size in SIZES.items():
        whole = sum(gradient(name, rank, step).double() for rank in range(ranks) for step in range(steps))
        sent = sum(
            found[step][name].double() for _, found in (results if shards else results[:1]) for step in range(steps)
        )
        left = sum(state[f"residual.{name}"].double() for state in states)
        second = torch.zeros(size, dtype=torch.float64)
        for state in states:
            for key, kept in state.items():
                if key.startswith("second.") and key.endswith(f".{name}"):
                    start, numel, _ = key.removeprefix("second.").split(".", 2)
                    second[int(start) : int(start) + int(numel)] += kept
        found = ranks * (sent + second) + left
        assert float((found - whole).norm() / whole.norm()) < 1e-5, f"nothing of {name} is lost"


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("form", FEEDBACK)
def test_error_feedback_loses_nothing_however_gradients_are_cut(form: str, ranks: int, shards: bool) -> None:
    judge_telescoping(form, ranks, shards)


class Forgets(TopK):
    """Fault: takes more from what is kept than it sent."""

    def add(self, payload: Sequence[Tensor], known: Known, total: Tensor, factor: float) -> None:
        super().add(payload, known, total, factor * (1.1 if factor < 0 else 1))


def test_feedback_that_loses_something_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynbench.compress.sparse.topk", compressor(Forgets, RatioOptions, ratio="ratio"))
    with pytest.raises(AssertionError, match="is lost"):
        judge_telescoping("topk error_feedback=true", 2, shards=False)


@pytest.mark.parametrize("form", [form for form in FORMS if codec(form).way != "two_stage"])
def test_the_mean_does_not_depend_on_how_gradients_are_cut(form: str) -> None:
    one, many = (on_threads(2, trained(form, 3, False, [cut]))[0][1] for cut in (CUTS[0], CUTS[2]))
    for a, b in zip(one, many, strict=True):
        for name in SIZES:
            assert same_bits([a[name], b[name]]), name


@settings(max_examples=25)
@given(
    form=st.sampled_from([form for form in FORMS if codec(form).contractive]),
    ranks=st.integers(1, 4),
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=5),
    least=st.sampled_from([0, 20, 1000]),
    shards=st.booleans(),
)
def test_any_cut_gives_means_of_the_right_size(
    form: str, ranks: int, sizes: list[int], least: int, shards: bool
) -> None:
    """What every rank has alike comes out alike, small parameters exactly so."""
    if "num_bits=4" in form and ranks > 3:
        return
    values = {str(place): torch.full((size,), 1.5) for place, size in enumerate(sizes)}

    def work(channel: Any) -> dict[str, Tensor]:
        made = averager(form)
        made.min_elements = least
        return averaged(channel, made, [list(values)], values, shards)

    results = on_threads(ranks, work)
    for name, value in values.items():
        total = sum(result[name] for result in results) if shards else results[0][name]
        if len(value) < least:
            assert torch.equal(total, value)
        elif "ratio" not in form and "topk" not in form:
            torch.testing.assert_close(total, value, rtol=0.35, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("form", ["int8", "fp8", "topk ratio=0.3", "randomk ratio=0.25"])
def test_gradients_of_other_types(form: str, dtype: torch.dtype) -> None:
    def work(channel: Any) -> Tensor:
        made = averager(form)
        made.min_elements = 10
        flat = torch.cat([gradient("embed", channel.rank, 0), gradient("bias", channel.rank, 0)]).to(dtype)
        made.mean(channel, flat, lay_out([("embed", [301]), ("bias", [5])]))
        return flat

    first, second = on_threads(2, work)
    assert first.dtype == dtype and same_bits([first, second])
    wanted = torch.stack([gradient("bias", rank, 0).to(dtype) for rank in (0, 1)]).double().mean(0)
    torch.testing.assert_close(first[301:].double(), wanted, rtol=1e-12 if dtype == torch.float64 else 0.02, atol=0.01)


def test_what_is_not_finite_reaches_all_ranks_and_does_not_come_back() -> None:
    for form in FEEDBACK:

        def work(channel: Any, form: str = form) -> list[Tensor]:
            made, found = averager(form), []
            for step in range(3):
                given = gradient("embed", channel.rank, step)
                if step == 0 and channel.rank == 0:
                    given[7] = torch.nan
                found.append(averaged(channel, made, [["embed"]], {"embed": given})["embed"])
            return found

        first, second = on_threads(2, work)
        assert [bool(each.isfinite().all()) for each in first] == [False, True, True], form
        assert all(same_bits(pair) for pair in zip(first, second, strict=True))


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("form", ["topk", "int8", "fp8"])
def test_the_first_steps_are_sent_as_they_are(form: str, shards: bool) -> None:
    def work(channel: Any) -> list[tuple[dict[str, Tensor], dict[str, object]]]:
        made, found = averager(f"{form} start_step=2"), []
        for step in range(3):
            given = {name: gradient(name, channel.rank, step) for name in SIZES}
            found.append((averaged(channel, made, CUTS[0], given, shards), dict(made.row())))
        return found

    results = on_threads(2, work)
    for step in range(3):
        assert [found[step][1]["compresses"] for found in results] == [int(step == 2)] * 2
        parts = [found[step][0]["embed"] for found in results]
        mean = sum(parts) if shards else parts[0]
        wanted = (gradient("embed", 0, step) + gradient("embed", 1, step)) / 2
        assert (float((mean - wanted).abs().max()) < 1e-6) == (step < 2)


def test_a_step_says_what_it_did() -> None:
    def work(channel: Any) -> tuple[Mapping[str, object], list[tuple[str, int]], Mapping[str, object]]:
        made = averager("threshold threshold=1.5")
        made.min_elements = 10
        averaged(channel, made, CUTS[0], {name: gradient(name, channel.rank, 0) for name in SIZES})
        return dict(made.row()), channel.calls, dict(made.row())

    for row, calls, empty in on_threads(2, work):
        assert set(row) == {column.name for column in CompressedMean.columns} == set(empty)
        assert [name for name, _ in calls] == ["all_reduce", "all_gather"]
        assert (row["extra_collectives"], row["compresses"]) == (1, 1)
        assert 0 < row["density"] < 0.6 and 0 < row["index_bytes"] < calls[1][1]
        assert row["residual_mb"] == pytest.approx((301 + 77 + 128) * 4 / 1e6)
        assert row["extra_collective_ms"] > 0 and row["payload_bytes"] == calls[1][1]
        assert row["compress_ms"] > 0 and row["decompress_ms"] > 0
        assert (empty["density"], empty["extra_collectives"], empty["compress_ms"]) == (None, 0, 0.0)


@pytest.mark.parametrize("form", FORMS)
def test_bytes_are_those_of_the_payloads(form: str) -> None:
    """Each message is as long as its payloads together, to a few bytes of alignment."""

    def work(channel: Any) -> tuple[list[tuple[str, int]], int]:
        made, given = averager(form), gradient("embed", channel.rank, 0)
        averaged(channel, made, [["embed"]], {"embed": given})
        known = Known(ranks=2)
        if made.codec.measures:
            both = [made.codec.measure(gradient("embed", rank, 0)).double() for rank in (0, 1)]
            known = Known(ranks=2, number=torch.stack(both).amax())
        return channel.calls, made.codec.compress(given, known).nbytes

    for calls, payload in on_threads(2, work):
        sent = [size for _, size in calls]
        if codec(form).measures:
            assert sent.pop(0) == 8, "a number for each parameter"
        expected = {"gather": [payload], "sum": [payload], "two_stage": [payload, payload / 2]}[codec(form).way]
        assert sent == pytest.approx(expected, abs=24)
