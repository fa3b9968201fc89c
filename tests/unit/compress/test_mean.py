"""The mean over ranks, here threads: the same everywhere, however odd gradients are, and feedback loses nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from compressors import FORMS, OWN, averager, codec, compressor, on_threads, same_bits
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dynbench.compress import CompressedMean, GradiVeq, Known, TopK
from dynbench.compress.compressing import ERROR_COLUMNS, Compressing, Error
from dynbench.wire.segment import lay_out

SHAPES = {"embed": (43, 7), "bias": (5,), "mix": (7, 11), "nothing": (0,), "score": (8, 16), "scale": (1,)}
CONTRACTIVE = [form for form in FORMS if codec(form).contractive]
FEEDBACK = [f"{form} error_feedback=true" for form in CONTRACTIVE if "feedback" not in form]
EVERY = (*FORMS, *OWN, "fp8 error_feedback=true")
Cut = Sequence[Sequence[str]]
Make = Callable[[], Compressing]
CUTS: list[Cut] = [
    [list(SHAPES)],
    [["mix", "embed"], ["scale", "bias", "nothing", "score"]],
    [[name] for name in reversed(SHAPES)],
]


def gradient(name: str, rank: int, step: int) -> Tensor:
    source = torch.Generator().manual_seed(1000 * step + 10 * rank + list(SHAPES).index(name))
    return torch.randn(math.prod(SHAPES[name]), generator=source) * (1 + rank)


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    return {name: gradient(name, rank, step) for name in SHAPES}


def averaged(
    channel: Any, made: Compressing, cut: Cut, given: Mapping[str, Tensor], shards: bool = False
) -> dict[str, Tensor]:
    """The means of one step by parameter; of shards what this rank has, and zeros elsewhere."""
    found = {}
    for names in cut:
        segments = lay_out((name, SHAPES.get(name, given[name].shape)) for name in names)
        flat = torch.cat([given[name] for name in names])
        if shards:
            flat = torch.nn.functional.pad(flat, (0, -len(flat) % channel.world_size))
            shard = torch.full((len(flat) // channel.world_size,), 7.0, dtype=flat.dtype)
            made.mean_shard(channel, flat, segments, shard)
            flat = torch.zeros_like(flat)
            flat.view(channel.world_size, -1)[channel.rank] = shard
        else:
            made.mean(channel, flat, segments)
        found |= {segment.name: segment.of(flat).reshape(-1).clone() for segment in segments}
    return found


def trained(make: Make, steps: int, shards: bool, cuts: Sequence[Cut] = CUTS) -> Callable[[Any], Any]:
    """Of a rank: its compressor, and of every step the means."""

    def work(channel: Any) -> tuple[Compressing, list[dict[str, Tensor]]]:
        made, found = make(), []
        for step in range(steps):
            given = gradients(channel.rank, step)
            found.append(averaged(channel, made, cuts[step % len(cuts)], given, shards))
        return made, found

    return work


def judge(make: Make, ranks: int, shards: bool, off: float = 1e-5, steps: int = 7) -> None:
    """All ranks get the same; all that was sent, and what is left out at either stage, are all gradients together."""
    results = on_threads(ranks, trained(make, steps, shards))
    if not shards:
        for step in range(steps):
            assert all(same_bits([found[step][name] for _, found in results]) for name in SHAPES), "the same bits"
    states = [made.state_dict() for made, _ in results]
    seen = results if shards else results[:1]
    for name, shape in SHAPES.items():
        whole = sum(gradient(name, rank, step).double() for rank in range(ranks) for step in range(steps))
        found = ranks * sum(step[name].double() for _, steps_of in seen for step in steps_of)
        for state in states:
            found += state.get(f"residual.{name}", torch.zeros(math.prod(shape))).double()
            for key, residual in state.items():
                if key.startswith("second.") and key.endswith(f".{name}"):
                    start, numel, _ = key.removeprefix("second.").split(".", 2)
                    found[int(start) : int(start) + int(numel)] += ranks * residual
        assert float((found - whole).norm()) <= off * float(whole.norm()), f"nothing of {name} is lost"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "shards"),
    [(2, False), (3, True), *(pytest.param(*each, marks=pytest.mark.matrix) for each in ((2, True), (3, False)))],
)
@pytest.mark.parametrize("form", [*FEEDBACK, *OWN])
def test_error_feedback_loses_nothing_however_gradients_are_cut(form: str, ranks: int, shards: bool) -> None:
    judge(lambda: compressor(form), ranks, shards, 1e-3 if form in OWN else 1e-5)


def flat_of(rank: int) -> Tensor:
    return torch.cat(list(gradients(rank, 0).values()))


def with_one(value: float) -> Callable[[int], Tensor]:
    """Ranks' gradients, of which the first has an element of this value."""
    return lambda rank: flat_of(rank).index_fill(0, torch.tensor([100 * (1 - rank)]), value if rank == 0 else 0.5)


ODD: dict[str, Callable[[int], Tensor]] = {
    "drawn": flat_of,
    "zeros": lambda rank: torch.zeros(512),
    "negative": lambda rank: -flat_of(rank).abs() - 0.1,
    "tiny": lambda rank: flat_of(rank) * 1e-37,
    "one rank has none": lambda rank: flat_of(rank) * rank,
    "half": lambda rank: flat_of(rank).half(),
    "bfloat16": lambda rank: flat_of(rank).bfloat16(),
    "double": lambda rank: flat_of(rank).double(),
    "infinite": with_one(torch.inf),
    "no number": with_one(torch.nan),
    "nothing at all": lambda rank: torch.zeros(0),
}


def judge_odd(make: Make, case: str) -> None:
    """What both ranks get of a case, once and once more after it."""
    is_finite = case not in ("infinite", "no number")
    segments = lay_out([("nothing", (0,))] if case == "nothing at all" else SHAPES.items())

    def work(channel: Any) -> list[Tensor]:
        made, found = make(), []
        for flat in (ODD[case](channel.rank), flat_of(channel.rank) if len(segments) > 1 else torch.zeros(0)):
            shape, dtype = flat.shape, flat.dtype
            made.mean(channel, flat, segments)
            assert (flat.shape, flat.dtype) == (shape, dtype)
            found.append(flat)
        return found

    first, second = on_threads(2, work)
    assert all(same_bits(pair) for pair in zip(first, second, strict=True)), f"one mean on all ranks: {case}"
    assert bool(first[0].isfinite().all()) == is_finite, f"what is not finite stays so: {case}"
    assert bool(first[1].isfinite().all()), f"and does not come back: {case}"
    if case == "zeros":
        assert not first[0].any()


@pytest.mark.slow
@pytest.mark.parametrize("form", EVERY)
def test_odd_gradients(form: str) -> None:
    for case in ODD:
        judge_odd(lambda: compressor(form), case)


class Forgets(TopK):
    """Fault: takes more from what is left out than it sent."""

    def add(self, payload: Sequence[Tensor], known: Known, total: Tensor, factor: float) -> None:
        super().add(payload, known, total, factor * (1.1 if factor < 0 else 1))


class KeepsItsOwn(GradiVeq):
    """Fault: every rank has directions of its own."""

    def _refresh(self, channel: Any, due: Any) -> None:
        for each in due:
            self._basis[each.part.name] = self._principal(each.slices.T @ each.slices, True)


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
    ("judged", "fails"),
    [
        (lambda: judge(lambda: CompressedMean(Forgets(), error_feedback=True, min_elements=0), 2, False), "is lost"),
        (lambda: judge(lambda: KeepsItsOwn(8, 3, min_elements=0), 2, False), "the same bits"),
        (lambda: judge_odd(lambda: Cleans(error_feedback=False), "infinite"), "stays so"),
        (lambda: judge_odd(lambda: OwnHalf(error_feedback=False), "drawn"), "one mean on all ranks"),
    ],
    ids=["forgets", "keeps its own", "cleans", "own half"],
)
def test_wrong_ones_are_caught(judged: Callable[[], None], fails: str) -> None:
    with pytest.raises(AssertionError, match=fails):
        judged()


@pytest.mark.slow
@pytest.mark.parametrize("form", [form for form in FORMS if codec(form).way != "two_stage"])
def test_the_mean_does_not_depend_on_how_gradients_are_cut(form: str) -> None:
    one, many = (on_threads(2, trained(lambda: compressor(form), 3, False, [cut]))[0][1] for cut in (CUTS[0], CUTS[2]))
    torch.testing.assert_close(one, many, rtol=0, atol=0)


@settings(max_examples=35)
@given(
    form=st.sampled_from(CONTRACTIVE),
    ranks=st.integers(1, 3),
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=5),
    least=st.sampled_from([0, 20, 1000]),
    shards=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
@example(form="int8", ranks=2, sizes=[50, 5], least=20, shards=False, dtype=torch.float64)
def test_any_cut_gives_means_of_the_right_size(
    form: str, ranks: int, sizes: list[int], least: int, shards: bool, dtype: torch.dtype
) -> None:
    """What every rank has alike comes out alike, small parameters exactly so, to the last bit of their type."""
    number = 1.5 + 3 * 2**-30  # a third of it is a float64, and it is itself none of a smaller type
    values = {str(place): torch.full((size,), number, dtype=dtype) for place, size in enumerate(sizes)}

    def work(channel: Any) -> dict[str, Tensor]:
        made = averager(form)
        made.min_elements = least
        return averaged(channel, made, [list(values)], values, shards)

    results = on_threads(ranks, work)
    for name, value in values.items():
        total = sum(result[name] for result in results) if shards else results[0][name]
        assert total.dtype == dtype
        if len(value) < least:
            assert torch.equal(total, value)
        elif "ratio" not in form and "topk" not in form:
            torch.testing.assert_close(total, value, rtol=0.35, atol=0.0)


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("form", ["topk", "int8", "fp8"])
def test_the_first_steps_are_sent_as_they_are(form: str, shards: bool) -> None:
    def work(channel: Any) -> list[tuple[Tensor, object]]:
        made, found = averager(f"{form} start_step=2"), []
        for step in range(3):
            means = averaged(channel, made, CUTS[0], gradients(channel.rank, step), shards)
            found.append((means["embed"], made.row()["compresses"]))
        return found

    for step, ((first, compresses), (second, alike)) in enumerate(zip(*on_threads(2, work), strict=True)):
        assert compresses == alike == int(step == 2)
        wanted = (gradient("embed", 0, step) + gradient("embed", 1, step)) / 2
        assert (float((first + second * shards - wanted).abs().max()) < 1e-6) == (step < 2)


def test_a_step_says_what_it_did() -> None:
    def work(channel: Any) -> tuple[Mapping[str, object], list[tuple[str, int]], Mapping[str, object]]:
        made = averager("threshold threshold=1.5")
        made.min_elements = 10
        averaged(channel, made, CUTS[0], gradients(channel.rank, 0))
        return dict(made.row()), channel.calls, dict(made.row())

    for row, calls, empty in on_threads(2, work):
        assert set(row) == {column.name for column in CompressedMean.columns} == set(empty)
        assert [name for name, _ in calls] == ["all_reduce", "all_gather"]
        assert row["extra_collectives"] == 1 and 0 < row["density"] < 0.6 and 0 < row["index_bytes"] < calls[1][1]
        assert row["residual_mb"] == pytest.approx((301 + 77 + 128) * 4 / 1e6)
        assert row["extra_collective_ms"] > 0 and row["payload_bytes"] == calls[1][1]
        assert row["compress_ms"] > 0 and row["decompress_ms"] > 0
        assert (empty["density"], empty["extra_collectives"], empty["compress_ms"]) == (None, 0, 0.0)


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_bytes_are_those_of_the_payloads(form: str, shards: bool) -> None:
    """Each message is as long as its payloads together, to a few bytes of alignment."""
    made, given, wanted = codec(form), gradient("embed", 0, 0), []
    parts = 2 if shards or made.way == "two_stage" else 1
    for piece in given.split(-(-len(given) // parts)):
        number = made.measure(piece).double() if made.measures else None
        wanted.append(made.compress(piece, Known(ranks=2, number=number)).nbytes)
    second = [max(wanted)] if made.way == "two_stage" and not shards else []

    def work(channel: Any) -> list[int]:
        averaged(channel, averager(form), [["embed"]], {"embed": given}, shards)
        return [size for _, size in channel.calls]

    for sent in on_threads(2, work):
        if made.measures:
            assert sent.pop(0) == 8 * parts, "a number for each parameter"
        assert sent == pytest.approx([parts * max(wanted), *second], abs=24)


LARGE = torch.ones(1000).index_fill(0, torch.tensor(0), 1e5)
GRADIENTS: dict[str, list[tuple[Tensor, Tensor]]] = {
    "one": [(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0]))],
    "two": [(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0])), (torch.tensor([-12.0]), torch.tensor([-11.5]))],
    "single precision would round": [(LARGE, LARGE + 1e-2 * (LARGE < 2))],
    "zeros": [(torch.zeros(2), torch.ones(2))],
    "empty": [(torch.zeros(0), torch.zeros(0))],
    "not measured": [],
}
"""Means as they are, and as they came out."""


@pytest.mark.parametrize("case", GRADIENTS)
def test_a_step_s_error_is_that_of_all_its_gradients_together(case: str) -> None:
    seen, wanted = Error(), dict.fromkeys(column.name for column in ERROR_COLUMNS)
    for pair in GRADIENTS[case]:
        seen.add(*pair)
        wanted["residual_norm"] = 0.5
    a, b = (np.concatenate([[], *(pair[side].double() for pair in GRADIENTS[case])]) for side in (0, 1))
    if a.any():
        whole = np.linalg.norm(a)
        cosine = a @ b / (whole * np.linalg.norm(b))
        wanted |= zip(wanted, (np.linalg.norm(a - b) / whole, abs(a - b).max() / abs(a).max(), cosine), strict=False)
    assert seen.row(0.5) == pytest.approx(wanted, rel=1e-12)
