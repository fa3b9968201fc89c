"""Attention by plain PyTorch, by torch's own kernels and by ours: time of each pass, and memory, by length and width.

`attention` has the batch and the mask of a model without heads; `flash` has one row and a causal mask, as kernels are
compared. Plain attention keeps the weights of all queries and keys for its backward pass, which is what runs out of
memory first; how much that is by hand stands beside what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from dynbench.bench.base import Case, Measured, OnOneDevice, Row
from dynbench.plugins.benchmarks import AttentionOptions
from dynbench.units import format_bytes, mb

if TYPE_CHECKING:
    from dynbench.engine.rank.rank_process import RankContext

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SQUARES = 3
"""Tensors of all queries by all keys that plain attention holds at once, in its backward pass: the weights that forward
kept, their gradients, and those of the scores."""
PASS_FLOPS = {"forward": 1.0, "backward": 2.5, "both": 3.5}
"""FLOPs of a pass, in those of forward: backward has five products of matrices for its two, as it computes scores anew.
They are counted alike for every way, whatever it computes, so that TFLOP/s compare as times do."""


class Attention(OnOneDevice):
    """Forward and backward of every way at every shape."""

    options: AttentionOptions
    passes: ClassVar[Sequence[str]] = ("forward", "backward")
    timer: ClassVar[str] = "own"
    """Whose clock: `own` times as many iterations as asked for; `triton` is Triton's on a GPU, and else `own` too."""
    own: ClassVar[Mapping[str, Any]] = {"lengths": (256, 1024), "widths": (16, 64), "batch": 8, "causal": False}
    """What null options are."""
    headers: ClassVar = {
        "length": "length",
        "channels": "d",
        "dtype": "type",
        "way": "way",
        "pass": "pass",
        "p50": "p50 (ms)",
        "sd": "sd (ms)",
        "tflop_per_s": "TFLOP/s",
        "saved_mb": "before backward (MB)",
        "peak_mb": "peak (MB)",
        "tiles": "tiles",
        "reference_error": "largest difference",
    }

    def __init__(self, options: AttentionOptions) -> None:
        super().__init__(options)
        chosen = {**self.own, **options.model_dump(include=set(self.own), exclude_none=True)}
        self.lengths, self.widths = (sorted(set(chosen[name])) for name in ("lengths", "widths"))
        self.batch, self.causal = int(chosen["batch"]), bool(chosen["causal"])

    def cases(self) -> Sequence[Case]:
        """Every pass of every way at every shape, the shortest first."""
        shapes = product(self.lengths, self.widths, self.options.dtypes)
        return [self._case(*shape, way, each) for shape in shapes for way in self.options.ways for each in self.passes]

    def _case(self, length: int, channels: int, dtype: str, way: str, each: str) -> Case:
        columns: dict[str, float | int | str] = {"way": way, "pass": each, "batch": self.batch}
        columns |= {"length": length, "channels": channels, "causal": int(self.causal)}
        columns["hand_count_mb"] = mb(plain_bytes(self.batch, length, dtype))
        return Case(f"{way} {each} {length} x {channels} {dtype}", [self.batch, length, channels], dtype, columns)

    def measure(self, case: Case, context: RankContext) -> Measured:
        """The iterations of one pass."""
        from dynbench.bench.attention_passes import measure_pass

        return measure_pass(case, self.options, context.device, self.timer)

    def summary(self, rows: Sequence[Row]) -> dict[str, object]:
        """How many times as long as torch's own attention each way takes, and its memory over that of the plain one."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for name, shown in (("times_of_sdpa", "sdpa"), ("memory_of_plain", "plain")):
            found[name] = {}
            for shape, each in _shapes(rows):
                values = _values(rows, shape, each, "p50" if shown == "sdpa" else "peak_mb")
                if values.get(shown):
                    key = f"{each} {shape[0]} x {shape[1]} {shape[2]}"
                    found[name][key] = {way: value / values[shown] for way, value in values.items()}
        return dict(found)

    def said(self, rows: Sequence[Row]) -> list[str]:
        """The same at the longest, and for each way the smallest shape that ran out of memory."""
        lines: list[str] = []
        for name, shown in (("times_of_sdpa", "times of torch's own"), ("memory_of_plain", "memory, of that of plain")):
            ratios = self.summary(rows)[name]
            assert isinstance(ratios, dict)
            last = list(ratios)[-len(self.passes) :]
            lines += [f"{key}: {shown}: {_listed(ratios[key])}" for key in last]
        lines += [
            f"{row.case}: wrong, {wrong:,} values are NaN or infinite; its times mean nothing"
            for row in rows
            if (wrong := row.columns.get("not_finite"))
        ]
        for way in self.options.ways:
            row = next((row for row in rows if row.columns["way"] == way and row.status == "oom"), None)
            if row is not None:
                lines.append(f"{way} first runs out of memory at {row.case}: {row.reason}")
        return lines


class Flash(Attention):
    """Forward, backward, and both in one, on a GPU by the timer that kernels are published with."""

    passes = ("forward", "backward", "both")
    timer = "triton"
    own: ClassVar = {"lengths": (128, 512, 2048), "widths": (64,), "batch": 1, "causal": True}


def plain_bytes(batch: int, length: int, dtype: str) -> int:
    """What plain attention needs at once, forward and backward, of what is quadratic in the length."""
    return SQUARES * batch * length * length * ELEMENT_BYTES[dtype]


def pass_flops(case: Case) -> float:
    """FLOPs of a pass as flash-attention's own benchmark counts them: `4 b n² d` forward, half of that where causal."""
    batch, length, channels = case.shape
    forward = 4 * batch * length**2 * channels / (2 if case.columns["causal"] else 1)
    return forward * PASS_FLOPS[str(case.columns["pass"])]


def hand_count(batch: int, length: int, dtype: str) -> str:
    """The same, with where it comes from."""
    size = ELEMENT_BYTES[dtype]
    total = format_bytes(plain_bytes(batch, length, dtype))
    return f"{SQUARES} x {batch} x {length}² x {size} B = {total} for weights, their gradients and those of the scores"


def _listed(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{way} {ratio:.3g}" for way, ratio in ratios.items())


Shape = tuple[int, int, str]


def _shapes(rows: Sequence[Row]) -> Iterator[tuple[Shape, str]]:
    """The shapes and passes that any row has, each once, as they come."""
    yield from dict.fromkeys((_shape(row), str(row.columns["pass"])) for row in rows)


def _shape(row: Row) -> Shape:
    return int(row.columns["length"]), int(row.columns["channels"]), row.dtype


def _values(rows: Sequence[Row], shape: Shape, each: str, column: str) -> dict[str, float]:
    """A column by way, of what was measured at a shape in a pass."""
    return {
        str(row.columns["way"]): float(value)
        for row in rows
        if _shape(row) == shape and row.columns["pass"] == each
        if isinstance(value := row.as_dict().get(column), int | float)
    }
