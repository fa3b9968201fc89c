"""Length traces: what `solve` plans. From a file or a built-in distribution, cut and described."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np

from dynbench.errors import UsageError, did_you_mean
from dynbench.lengths import READERS, SHIPPED, read_second, read_trace
from dynbench.schedule.plan import IntArray, integers


@dataclass(frozen=True, slots=True)
class Trace:
    """Lengths of a data set's samples in order of arrival.

    Attributes:
        name: how results call it.
        lengths: tokens per sample, positive, shape [N].
        source: file or distribution it came from.
        positions: longest padded sample that the model trained on them takes, tokens; None for any.
        workload: dotted key to value of the settings with which `train` loads these samples, or ones of the same
            distribution; None where there are lengths only.
        train_max_length: where `train` cuts them, tokens; None where that is not known.
        cut_samples: samples that `cut` has made shorter.
        second: a second number per sample, as `Problem.second`, shape [N]; None where there is none.
    """

    name: str
    lengths: IntArray
    source: str
    positions: int | None = None
    workload: Mapping[str, object] | None = None
    train_max_length: int | None = None
    cut_samples: int = 0
    second: IntArray | None = None

    @property
    def longer_than_train(self) -> int:
        """Samples that `train` would cut and that stand here at their length."""
        return 0 if self.train_max_length is None else int((self.lengths > self.train_max_length).sum())

    def cut(self, max_length: int | None) -> Trace:
        """The trace as truncation to `max_length` tokens leaves it; unchanged for None."""
        if max_length is None:
            return self
        if max_length < 1:
            raise UsageError(f"--max-length {max_length}: a sample has at least 1 token", "Give a positive number.")
        cut = self.cut_samples + int((self.lengths > max_length).sum())
        return replace(self, lengths=np.minimum(self.lengths, max_length), cut_samples=cut)


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """A trace in one line; lengths in tokens."""

    samples: int
    """How many lengths."""
    mean: float
    """Mean length."""
    sd: float
    """Standard deviation of the lengths."""
    min: int
    """Shortest."""
    p50: float
    """Median."""
    p95: float
    """95th percentile."""
    p99: float
    """99th percentile."""
    max: int
    """Longest."""


def describe(lengths: IntArray) -> LengthStatistics:
    """Statistics of lengths, shape [N]."""
    p50, p95, p99 = (float(q) for q in np.percentile(lengths, (50, 95, 99)))
    return LengthStatistics(
        len(lengths), float(lengths.mean()), float(lengths.std()), int(lengths.min()), p50, p95, p99, int(lengths.max())
    )


def lognormal_lengths() -> IntArray:
    """50,000 lengths lognormal(5, 1) clamped to 16..1024, as equally likely quantiles: no draw, no seed."""
    normal, n = NormalDist(5.0), 50_000
    quantiles = np.array([normal.inv_cdf((i + 0.5) / n) for i in range(n)])
    return integers(np.clip(np.rint(np.exp(quantiles)), 16, 1024))


BUILT_IN: dict[str, tuple[Callable[[], IntArray], str, str | None]] = {
    "sst2": (lambda: SHIPPED["sst2"], "GLUE SST-2, training split, WordPiece tokens (histogram)", "embedded"),
    "gsm8k": (lambda: SHIPPED["gsm8k"], "GSM8K, training split, WordPiece tokens (histogram)", None),
    "lognormal": (lognormal_lengths, "lognormal(5, 1) clamped to 16-1024", "lognormal"),
}
"""Distributions that need no file: name to (lengths, source, data set of `train` that draws from it)."""


def built_in_trace(name: str) -> Trace:
    """One of the distributions of `BUILT_IN`."""
    build, source, dataset = BUILT_IN[name]
    # A distribution has no order of its own; this one is fixed, so that `--order file` means the same everywhere.
    lengths = np.random.default_rng(0).permutation(build())
    return Trace(name, lengths, source, workload=None if dataset is None else {"workload.dataset": dataset})


def load_trace(spec: str, column: str | None = None, second_column: str | None = None) -> Trace:
    """A trace from a path or the name of a built-in distribution.

    Args:
        spec: path ending in one of `READERS`, or a key of `BUILT_IN`.
        column: column that holds the lengths; None takes `length`, or the only column.
        second_column: column that holds the second numbers; None for none.

    Raises:
        DataError: the file cannot be read, or a length is missing, not a whole number or not positive; names file,
            row (counted from 1, header left out) and value.
        UsageError: neither a file nor a known name, or a distribution, which has no second column.
    """
    if spec in BUILT_IN and second_column is not None:
        raise UsageError(
            f"--second-column: {second_column!r} is no column of {spec}, a distribution of lengths alone",
            "Name a trace file that has it, or leave it out.",
        )
    if spec in BUILT_IN:
        return built_in_trace(spec)
    path = Path(spec)
    if not path.is_file():
        raise UsageError(
            f"{spec}: no such trace file or distribution. {did_you_mean(spec, BUILT_IN)}".rstrip(),
            f"Give a file ({', '.join(READERS)}) or one of {', '.join(BUILT_IN)}.",
        )
    lengths, second = read_trace(path, column), None
    name = path.name.removesuffix(path.suffix).removesuffix(".lengths")
    trains = {"workload.dataset": "lengths", "workload.data_path": str(path), "workload.length_column": column}
    if second_column is not None:
        second, trains["workload.second_column"] = read_second(path, second_column), second_column
    return Trace(name, lengths, str(path), workload=trains, second=second)
