"""Memory and communication of training a large model, by formula; nothing is measured.

The model has L layers of two matrices, D x F and F x D. Every row says its formula and what was put in; presets give
published exercises. Sources: the CS336 systems assignment (communication accounting) and "How to Scale Your Model"
(jax-ml.github.io/scaling-book), whose two editions count overlapping mesh axes differently: both forms are given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dynbench.bench.base import Benchmark, Case, Device, Measured, Row, titled
from dynbench.plugins.benchmarks import AccountingOptions

if TYPE_CHECKING:
    from dynbench.engine.rank.rank_process import RankContext

GB, GIB = 1e9, 2**30
SUM = "axes do not overlap: F/(Y M_X) + B/(X M_Y) < B F/(X Y alpha)"
OVERLAPPED = "axes overlap: F/(Y M_X) < B F/(X Y alpha), and B/(X M_Y) < B F/(X Y alpha)"


@dataclass(frozen=True)
class Setting:
    """What the formulas are given, by the names that they use."""

    width: int
    inner: int
    layers: int
    accelerator_gb: float
    chip_gb: float
    local_tokens: tuple[int, ...]
    sharded_activations: float
    flops: float
    bandwidth: float
    fsdp: int
    tensor: int
    fsdp_links: int
    tensor_links: int
    gradient_bytes: float
    bucket_bandwidth: float
    call_s: float

    @property
    def parameters(self) -> int:
        """P."""
        return 2 * self.width * self.inner * self.layers

    @property
    def saved_per_token(self) -> int:
        """Bytes of activations that backward needs of a token, in bf16."""
        return 2 * (self.width + self.inner) * self.layers

    @property
    def alpha(self) -> float:
        """FLOPs that a device computes while its link carries a byte."""
        return self.flops / self.bandwidth

    @property
    def devices(self) -> int:
        """Of the mesh."""
        return self.fsdp * self.tensor


PRESETS: Mapping[str, Setting] = {
    "communication_accounting": Setting(
        16384, 53248, 126, 80, 95, (0, 1024, 2048, 4096, 8192), 0.5, 4.6e14, 1.8e11, 16, 4, 2, 1, 8e9, 1.2e11, 50e-6
    ),
    "xl_h100": Setting(
        1600, 6400, 48, 80, 80, (0, 1024, 2048, 4096, 8192), 0.5, 9.89e14, 4.5e11, 4, 2, 1, 1, 8e9, 4.5e11, 50e-6
    ),
}


@dataclass(frozen=True)
class Line:
    """One quantity."""

    name: str
    value: float
    unit: str
    formula: str
    with_values: str


class Accounting(Benchmark):
    """Every quantity of the setting, each a row whose `p50` is its value."""

    options: AccountingOptions
    headers: ClassVar = titled("case", "shown", "unit", "formula", "with", case="quantity")

    def __init__(self, options: AccountingOptions) -> None:
        super().__init__(options)
        self.setting = replace(PRESETS[options.preset], **options.model_dump(exclude={"preset"}, exclude_none=True))
        self._lines = {line.name: line for line in all_lines(self.setting)}

    device: Device = "cpu"
    """There is nothing for a GPU to do."""

    def cases(self) -> Sequence[Case]:
        """A quantity each."""
        return [
            Case(line.name, [], "float64", {"formula": line.formula, "with": line.with_values})
            for line in self._lines.values()
        ]

    def measure(self, case: Case, context: RankContext) -> Measured:
        """The value."""
        line = self._lines[case.name]
        return Measured(np.array([line.value]), {"shown": _shown(line.value)}, unit=line.unit)

    def said(self, rows: Sequence[Row]) -> list[str]:
        """What the formulas were given."""
        known = [each.name for each in fields(Setting) if each.name != "local_tokens"]
        return [
            ", ".join(f"{name}={getattr(self.setting, name):.6g}" for name in known),
            f"local_tokens={','.join(map(str, self.setting.local_tokens))}; GB is 1e9 bytes, GiB 2^30",
        ]


def all_lines(given: Setting) -> Iterator[Line]:
    """Every quantity that is finite: meshes that are never compute-bound have no batch."""
    for part in (_one_device, _sharded, _mesh, _levers, _buckets):
        yield from (line for line in part(given) if math.isfinite(line.value))


def _ceil(value: float) -> float:
    return float(np.ceil(value))


def _one_device(given: Setting) -> Iterator[Line]:
    count, state = given.parameters, 16 * given.parameters
    sizes = f"D={given.width}, F={given.inner}, L={given.layers}"
    yield Line("parameters", count, "parameters", "P = 2 D F L", sizes)
    yield Line("weights, fp32", 4 * count / GB, "GB", "4 P", f"P={count:,}")
    what = "16 P: weights, gradients and two moments of AdamW, 4 B each"
    yield Line("weights, gradients and optimizer state, fp32", state / GB, "GB", what, f"P={count:,}")
    yield Line("weights, gradients and optimizer state, fp32, in GiB", state / GIB, "GiB", what, f"P={count:,}")
    yield Line("saved for backward of a token, bf16", given.saved_per_token / 1e6, "MB", "2 (D + F) L", sizes)
    for name, unit in (("GB", GB), ("GiB", GIB)):
        room = given.accelerator_gb * unit
        label = f"accelerators of {given.accelerator_gb:g} {name} for the state alone"
        put = f"16 P = {state / GB:,.2f} GB, {state / room:.2f} times the memory"
        yield Line(label, _ceil(state / room), "devices", "ceil(16 P / memory)", put)


def least_devices(given: Setting, tokens: int, room: float) -> float:
    """Devices over which a model is sharded so that each holds no more than `room` bytes, infinite where none suffice.

    Each holds 16 P / N of the state, the part of its activations that is not sharded, and 1 / N of the other part.
    """
    sharded = given.sharded_activations * given.saved_per_token * tokens
    whole = (1 - given.sharded_activations) * given.saved_per_token * tokens
    return (16 * given.parameters + sharded) / (room - whole) if room > whole else math.inf


def _sharded(given: Setting) -> Iterator[Line]:
    formula = "M(N) = 16 P/N + (1-h) A + h A/N <= memory, so N >= (16 P + h A) / (memory - (1-h) A)"
    for tokens in given.local_tokens:
        put = f"h={given.sharded_activations:g}, A={given.saved_per_token * tokens / GB:.4g} GB of {tokens} tokens"
        for name, unit in (("GB", GB), ("GiB", GIB)):
            exact = least_devices(given, tokens, given.chip_gb * unit)
            label = f"least devices of {given.chip_gb:g} {name} for FSDP, {tokens} tokens each"
            yield Line(label, _ceil(exact), "devices", formula, f"{put}; N >= {exact:.2f}")
    devices, tokens = given.devices, given.local_tokens[-1]
    activations = given.saved_per_token * tokens
    memory = 16 * given.parameters / devices
    memory += (1 - given.sharded_activations) * activations + given.sharded_activations * activations / devices
    yield Line(f"memory of each of {devices} devices, {tokens} tokens each", memory / GB, "GB", formula, f"N={devices}")


def batch_of_sum(given: Setting, *, exact: bool = False) -> float:
    """Tokens from which a forward pass is compute-bound where the two axes take turns; infinite where it never is.

    Args:
        given: the setting.
        exact: with the (n-1)/n of a ring, which others round to 1.
    """
    x, y = given.fsdp, given.tensor
    weights = given.inner / (y * given.fsdp_links) * ((x - 1) / x if exact else 1)
    per_token = 1 / (x * given.tensor_links) * ((y - 1) / y if exact else 1)
    room = given.inner / (given.devices * given.alpha) - per_token
    return weights / room if room > 0 else math.inf


def batch_of_overlap(given: Setting) -> float:
    """The same where the axes overlap: that of weights decides, where F is large enough for the other."""
    if given.inner < given.tensor * given.alpha / given.tensor_links:
        return math.inf
    return given.fsdp * given.alpha / given.fsdp_links


def _mesh(given: Setting) -> Iterator[Line]:
    x, y, alpha = given.fsdp, given.tensor, given.alpha
    mesh = f"X={x}, Y={y}, M_X={given.fsdp_links}, M_Y={given.tensor_links}, alpha={alpha:.1f}"
    put = f"C={given.flops:.3g} FLOP/s, W={given.bandwidth:.3g} B/s"
    yield Line("arithmetic intensity of a link (alpha)", alpha, "FLOP/B", "C / W", put)
    forms = (
        ("axes not overlapped", batch_of_sum(given), f"{SUM}; alpha = C/W"),
        ("axes overlapped", batch_of_overlap(given), f"{OVERLAPPED}; B >= X alpha/M_X"),
        ("not overlapped, exact rings", batch_of_sum(given, exact=True), "as not overlapped, with (X-1)/X and (Y-1)/Y"),
    )
    for label, batch, formula in forms:
        with_value = f"{mesh}; B >= {batch:.1f}"
        yield Line(f"compute-bound batch, {label}", _ceil(batch), "tokens", formula, with_value)
        yield Line(f"compute-bound batch per device, {label}", batch / given.devices, "tokens", "B / (X Y)", with_value)
        yield Line(f"compute-bound batch per FSDP shard, {label}", batch / x, "tokens", "B / X", with_value)
    least = y * alpha / given.tensor_links
    yield Line("least F for the tensor axis, axes overlapped", least, "channels", "Y alpha / M_Y", mesh)
    links = given.fsdp_links * given.tensor_links
    for label, factor in (("not overlapped", 4), ("overlapped", 1)):
        batch, formula = factor * alpha**2 / (links * given.inner), f"{factor} alpha^2 / (M_X M_Y F)".removeprefix("1 ")
        name = f"compute-bound batch per device, best mesh, axes {label}"
        yield Line(name, batch, "tokens", formula, f"{mesh}, F={given.inner}")
    batch = batch_of_sum(given)
    best = math.sqrt(batch / given.inner * given.fsdp_links / given.tensor_links * given.devices)
    yield Line("best X at that batch", best, "devices", "sqrt(B/F M_X/M_Y X Y)", f"B={batch:.0f}, {mesh}")


def _levers(given: Setting) -> Iterator[Line]:
    """What lowers the batch at which a forward pass of this mesh is compute-bound, each by itself."""
    levers: Sequence[tuple[str, dict[str, Any], str]] = (
        (
            "8-bit weights and activations on the wire",
            {"bandwidth": 2 * given.bandwidth},
            "half the bytes: W doubles (ZeRO++, arXiv:2306.10209)",
        ),
        ("one more link for FSDP", {"fsdp_links": given.fsdp_links + 1}, "M_X + 1 (scaling book, training chapter)"),
        (
            "one more link for tensor parallelism",
            {"tensor_links": given.tensor_links + 1},
            "M_Y + 1 (scaling book, training chapter)",
        ),
        (
            "half of the FSDP axis given to pipeline stages",
            {"fsdp": max(1, given.fsdp // 2)},
            "X / 2 (GPipe, arXiv:1811.06965); its bubbles are not counted",
        ),
    )
    for name, change, source in levers:
        batch, put = batch_of_sum(replace(given, **change)), ", ".join(f"{key}={change[key]:g}" for key in change)
        yield Line(f"compute-bound batch with {name}", _ceil(batch), "tokens", f"{SUM}; {source}", put)
    source = "B >= X alpha/M_X; asynchronous tensor parallelism (Wang et al., ASPLOS 2023)"
    name = "compute-bound batch with both axes overlapped with computing"
    yield Line(name, _ceil(batch_of_overlap(given)), "tokens", source, f"X={given.fsdp}, alpha={given.alpha:.1f}")


def _buckets(given: Setting) -> Iterator[Line]:
    """Gradients sent in n buckets while later ones are computed, each as fast as it is sent."""
    s, w, o = given.gradient_bytes, given.bucket_bandwidth, given.call_s
    best, put = math.sqrt(s / (o * w)), f"s={s:.3g} B, w={w:.3g} B/s, o={o:.3g} s"
    formula = "T(n) = n o + s/(n w): calls, and the last bucket, which nothing hides"
    for count in (1, 10, 100):
        yield Line(f"overhead, buckets: {count}", 1e3 * (count * o + s / (count * w)), "ms", formula, put)
    yield Line("best number of buckets", best, "buckets", "dT/dn = 0: n = sqrt(s/(o w))", put)
    yield Line("best size of a bucket", s / best / 1e6, "MB", "s/n = sqrt(s w o), or the largest parameter", put)
    yield Line("overhead of the best number of buckets", 2e3 * math.sqrt(s * o / w), "ms", "2 sqrt(s o/w)", put)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
