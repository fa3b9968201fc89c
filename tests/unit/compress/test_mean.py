"""The mean over ranks, here threads: the same everywhere, however odd gradients are, and feedback loses nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from compressors import ELSEWHERE, FORMS, NAMED, OWN, averager, codec, compressor, on_threads, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from toys import Bf16

from dynbench.compress import CompressedMean, GradiVeq, Known, TopK
from dynbench.compress.compressing import ERROR_COLUMNS, Compressing, Error
from dynbench.config.schema import Compress
from dynbench.plugins import COMPRESSORS
from dynbench.wire.segment import lay_out

SHAPES = {"embed": (43, 7), "bias": (5,), "mix": (7, 11), "nothing": (0,), "score": (8, 16), "scale": (1,)}
FEEDBACK = [f"{form} error_feedback=true" for form in FORMS if codec(form).contractive and "feedback" not in form]
EVERY = (*FORMS, *OWN, "fp8 error_feedback=true")
Cut = Sequence[Sequence[str]]
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


def trained(
    make: Callable[[], Compressing], steps: int, shards: bool, cuts: Sequence[Cut] = CUTS
) -> Callable[[Any], Any]:
    """Of a rank: its compressor, and of every step the means."""

    def work(channel: Any) -> tuple[Compressing, list[dict[str, Tensor]]]:
        made = make()
        return made, [
            averaged(channel, made, cuts[step % len(cuts)], gradients(channel.rank, step), shards)
            for step in range(steps)
        ]

    return work


def judge(make: Callable[[], Compressing], ranks: int, shards: bool, off: float = 1e-5, steps: int = 7) -> None:
    """All ranks get the same; all that was sent, and what is left out at either stage, are all gradients together."""
    results = on_threads(ranks, trained(make, steps, shards))
    if not shards:
        for step in range(steps):
            assert all(same_bits([found[step][name] for _, found in results]) for name in SHAPES), "the same bits"
    states = [made.state_dict() for made, _ in results]
    for name, shape in SHAPES.items():
        whole = sum(gradient(name, rank, step).double() for rank in range(ranks) for step in range(steps))
        sent = sum(
            found[step][name].double() for _, found in (results if shards else results[:1]) for step in range(steps)
        )
        left = sum(state.get(f"residual.{name}", torch.zeros(math.prod(shape))).double() for state in states)
        second = torch.zeros(math.prod(shape), dtype=torch.float64)
        for state in states:
            for key, residual in state.items():
                if key.startswith("second.") and key.endswith(f".{name}"):
                    start, numel, _ = key.removeprefix("second.").split(".", 2)
                    second[int(start) : int(start) + int(numel)] += residual
        found = ranks * (sent + second) + left
        assert float((found - whole).norm()) <= off * float(whole.norm()), f"nothing of {name} is lost"


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("form", [*FEEDBACK, *OWN])
def test_error_feedback_loses_nothing_however_gradients_are_cut(form: str, ranks: int, shards: bool) -> None:
    judge(lambda: compressor(form), ranks, shards, 1e-3 if form in OWN else 1e-5)


class Forgets(TopK):
    """Fault: takes more from what is left out than it sent."""

    def add(self, payload: Sequence[Tensor], known: Known, total: Tensor, factor: float) -> None:
        super().add(payload, known, total, factor * (1.1 if factor < 0 else 1))


class KeepsItsOwn(GradiVeq):
    """Fault: every rank has directions of its own."""

    def _refresh(self, channel: Any, due: Any) -> None:
        for each in due:
            self._basis[each.part.name] = self._principal(each.slices.T @ each.slices, True)


@pytest.mark.parametrize(
    ("wrong", "fails"),
    [
        (lambda: CompressedMean(Forgets(), error_feedback=True, min_elements=0), "is lost"),
        (lambda: KeepsItsOwn(8, 3, min_elements=0), "the same bits"),
    ],
)
def test_what_loses_something_or_differs_between_ranks_is_caught(wrong: Callable[[], Compressing], fails: str) -> None:
    with pytest.raises(AssertionError, match=fails):
        judge(wrong, 2, shards=False)


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
    "every other element": lambda rank: flat_of(rank).repeat_interleave(2)[::2].contiguous(),
    "infinite": with_one(torch.inf),
    "no number": with_one(torch.nan),
    "nothing at all": lambda rank: torch.zeros(0),
}


def judge_odd(make: Callable[[], Compressing], case: str) -> None:
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
    assert all(same_bits(pair) for pair in zip(first, second, strict=True)), "one mean on all ranks"
    assert bool(first[0].isfinite().all()) == is_finite, "what is not finite stays so"
    assert bool(first[1].isfinite().all()), "and does not come back"
    if case == "zeros":
        assert not first[0].any()


def test_every_compressor_is_among_them() -> None:
    assert {form.split()[0] for form in EVERY} == set(NAMED) - {"fp16_torch"}
    assert {"fp16_torch"} == set(ELSEWHERE) - {form.split()[0] for form in OWN}
    assert COMPRESSORS["none"].load()(Compress()) is None, "nothing is compressed without a queue"


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("form", EVERY)
def test_odd_gradients(form: str, case: str) -> None:
    judge_odd(lambda: compressor(form), case)


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
    ("wrong", "case", "fails"), [(Cleans, "infinite", "stays so"), (OwnHalf, "drawn", "one mean on all ranks")]
)
def test_wrong_ones_are_caught(wrong: type[Compressing], case: str, fails: str) -> None:
    with pytest.raises(AssertionError, match=fails):
        judge_odd(lambda: wrong(error_feedback=False), case)


@pytest.mark.parametrize("form", [form for form in FORMS if codec(form).way != "two_stage"])
def test_the_mean_does_not_depend_on_how_gradients_are_cut(form: str) -> None:
    make = lambda: compressor(form)  # noqa: E731
    one, many = (on_threads(2, trained(make, 3, False, [cut]))[0][1] for cut in (CUTS[0], CUTS[2]))
    for a, b in zip(one, many, strict=True):
        assert all(same_bits([a[name], b[name]]) for name in SHAPES)


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


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("form", ["topk", "int8", "fp8"])
def test_the_first_steps_are_sent_as_they_are(form: str, shards: bool) -> None:
    def work(channel: Any) -> list[tuple[dict[str, Tensor], dict[str, object]]]:
        made, found = averager(f"{form} start_step=2"), []
        for step in range(3):
            means = averaged(channel, made, CUTS[0], gradients(channel.rank, step), shards)
            found.append((means, dict(made.row())))
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
        averaged(channel, made, CUTS[0], gradients(channel.rank, 0))
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


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_bytes_are_those_of_the_payloads(form: str, shards: bool) -> None:
    """Each message is as long as its payloads together, to a few bytes of alignment."""
    made, parts = codec(form), 2 if shards or codec(form).way == "two_stage" else 1
    size = math.prod(SHAPES["embed"])
    pieces = [slice(0, -(-size // parts)), slice(-(-size // parts), size)][:parts]

    def work(channel: Any) -> tuple[list[tuple[str, int]], list[int]]:
        given, payloads = gradient("embed", channel.rank, 0), []
        averaged(channel, averager(form), [["embed"]], {"embed": given}, shards)
        for piece in pieces:
            known = Known(ranks=2)
            if made.measures:
                both = [made.measure(gradient("embed", rank, 0)[piece]).double() for rank in (0, 1)]
                known = Known(ranks=2, number=torch.stack(both).amax())
            payloads.append(made.compress(given[piece], known).nbytes)
        return channel.calls, payloads

    for calls, payloads in on_threads(2, work):
        sent = [size for _, size in calls]
        if made.measures:
            assert sent.pop(0) == 8 * parts, "a number for each parameter"
        message = max(payloads)
        second = [message] if made.way == "two_stage" and not shards else []
        assert sent == pytest.approx([parts * message, *second], abs=24)


def test_the_shard_is_that_of_the_mean_where_nothing_less_is_sent() -> None:
    class Doubles(Bf16):
        def mean(self, channel: object, flat: Tensor, segments: object) -> None:
            flat.mul_(2)

    found = on_threads(
        2, lambda channel: Doubles(Compress()).mean_shard(channel, flat := torch.arange(4.0), (), flat[:2]) or flat
    )
    assert [flat[:2].tolist() for flat in found] == [[0, 2], [4, 6]]


def test_what_two_gradients_are_off_by_jointly() -> None:
    """Of 3, 4 the 4 was lost; of 12, which is kept, nothing: 4 of a norm of 13."""
    seen = Error()
    seen.add(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0]))
    assert seen.row(0.5) == {
        "grad_rel_error": pytest.approx(4 / 5),
        "grad_rel_error_max": 1.0,
        "grad_cos_sim": pytest.approx(9 / 15),
        "residual_norm": 0.5,
    }
    seen.add(torch.tensor([-12.0]), torch.tensor([-12.0]))
    assert seen.row(0.5) == {
        "grad_rel_error": pytest.approx(4 / 13),
        "grad_rel_error_max": pytest.approx(4 / 12),
        "grad_cos_sim": pytest.approx((9 + 144) / (13 * (9 + 144) ** 0.5)),
        "residual_norm": 0.5,
    }


def test_sums_are_exact_where_single_precision_would_round() -> None:
    exact = torch.full((1000,), 1.0)
    exact[0] = 1e5
    seen = Error()
    seen.add(exact, exact + 1e-2 * (torch.arange(1000) > 0))
    apart = float((exact[1:] + 1e-2).double().sub(exact[1:].double()).square().sum())
    assert seen.row(0.0)["grad_rel_error"] == pytest.approx((apart / (1e10 + 999)) ** 0.5, rel=1e-12)


@pytest.mark.parametrize(
    ("exact", "found", "residual"),
    [(None, None, None), ([0.0, 0.0], [0.0, 2.0], 0.5), ([], [], 0.5)],
)
def test_nothing_measured_or_a_gradient_of_nothing_has_no_relative_error(exact, found, residual) -> None:
    seen = Error()
    if exact is not None:
        seen.add(torch.tensor(exact), torch.tensor(found))
    assert seen.row(0.5) == dict.fromkeys([column.name for column in ERROR_COLUMNS]) | {"residual_norm": residual}
