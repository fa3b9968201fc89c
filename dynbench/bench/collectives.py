"""Collectives by size: what nccl-tests prints, quantiles over iterations, and latency with bandwidth by a linear fit.

`size`, `count`, `time`, `algbw` and `busbw` are as in nccl-tests (doc/PERFORMANCE.md there): algbw is the size over the
time, and busbw that times the operation's factor, which for any number of ranks compares with the bandwidth of the
slowest link. Its columns redop and root would always say sum and 0, and of its two halves there is one: all-reduce and
broadcast are measured in place, the others out of place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dynbench.bench.base import (
    ELEMENT_BYTES,
    Benchmark,
    Case,
    Cell,
    Columns,
    Device,
    Measured,
    NotMeasured,
    Row,
    titled,
)
from dynbench.plugins.benchmarks import CollectivesOptions
from dynbench.units import mb

if TYPE_CHECKING:
    import torch

    from dynbench.engine.rank.rank_process import RankContext

MIB = 2**20
COMM_FILE = "comm_model.json"
"""What `launch.comm_model` reads; see `engine.comm_model.read_comm_file`."""
BUS_FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "send_recv": lambda ranks: 1.0,
}
"""What each rank sends at least, as a part of the size, by operation."""
DIVIDED = ("reduce_scatter", "all_gather", "all_to_all")
"""Operations in which every rank has an equal part of the buffer."""
Points = Sequence[tuple[float, float]]
Group = tuple[str, str, str, int]
"""Operation, back end, type and number of processes."""


class Collectives(Benchmark):
    """Every operation over the sizes, types, back ends and numbers of processes."""

    options: CollectivesOptions
    headers: ClassVar = titled(
        *("operation", "backend", "processes", "size", "count", "type", "time", "algbw", "busbw", "#wrong"),
        *("p50", "p95", "p99", "sent_bytes", "shared"),
        backend="back end",
        size="size (B)",
        time="time (us)",
        algbw="algbw (GB/s)",
        busbw="busbw (GB/s)",
        sent_bytes="sent (B)",
    )

    @property
    def processes(self) -> int:
        """The most of `processes`."""
        return max(self.options.processes)

    device: Device = "cpu"
    """Of the process group which all launches have; a back end on GPUs has a group of its own."""

    def ranks_of(self, case: Case) -> int:
        """Those of the case."""
        return int(case.columns["processes"])

    def device_of(self, case: Case, context: RankContext) -> torch.device:
        """The rank's GPU, which several share where there are fewer, or the CPU."""
        import torch

        gpus = _gpus() if case.columns["backend"] != "gloo" else 0
        return torch.device("cuda", context.local_rank % gpus) if gpus else torch.device("cpu")

    def cases(self) -> Sequence[Case]:
        """Every combination, the sizes ascending; one case for all of a back end that cannot run here."""
        cases: list[Case] = []
        operations = dict.fromkeys(self.options.operations)
        for processes, backend in product(dict.fromkeys(self.options.processes), dict.fromkeys(self.options.backend)):
            backend = backend if backend != "auto" else "nccl" if _gpus() >= processes else "gloo"
            about: Columns = {"backend": backend, "processes": processes}
            if _why_not(backend, processes):
                cases.append(Case(f"{backend} x{processes}", [], "", about))
                continue
            sizes = sorted(set(self.options.sizes_mib))
            for dtype, operation, size in product(dict.fromkeys(self.options.dtype), operations, sizes):
                cases.append(_case(operation, size, dtype, about))
        return cases

    def measure(self, case: Case, context: RankContext) -> Measured:
        """The iterations of one size."""
        reason = _why_not(str(case.columns["backend"]), self.ranks_of(case))
        if reason:
            raise NotMeasured(reason)
        from dynbench.bench.collective_calls import measure_collective

        measured = measure_collective(case, self.options, context, self.device_of(case, context))
        return replace(measured, columns={**_bandwidths(case, measured.values), **measured.columns})

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Latency (alpha) and inverse bandwidth (beta) of the medians of every operation, by relative least squares.

        `fit` is that of the all-reduce which `launch.comm_model` is given; null for fewer than two sizes.
        """
        fits = _fits(rows)
        chosen = _for_comm_model(rows)
        names = ("operation", "backend", "type", "processes")
        return {
            "world_size": chosen[-1] if chosen else self.processes,
            "fit": fits.get(chosen) if chosen else None,
            "fits": [dict(zip(names, group, strict=True)) | fit for group, fit in fits.items()],
        }

    def said(self, rows: Sequence[Row]) -> list[str]:
        """What is wrong, latency and bandwidth with the error at each size, and who reads them."""
        lines = [f"{row.case}: {fault}" for row in rows for fault in _faults(row)]
        lines += [_fit_line(group, fit) for group, fit in _fits(rows).items()]
        for row in rows:
            if row.status == "ok" and row.n < self.options.iterations:
                lines.append(f"{row.case}: {row.n} iterations, as limit_s={self.options.limit_s:g} was over")
        chosen = _for_comm_model(rows)
        if chosen:
            lines.append(f"{COMM_FILE} of the run, {_title(chosen)}, is what launch.comm_model takes")
        return lines

    def further_files(self, rows: Sequence[Row]) -> dict[str, object]:
        """The medians of an all-reduce, for `launch.comm_model`."""
        from dynbench.engine.comm_model import FILE_SCHEMA_VERSION

        chosen = _for_comm_model(rows)
        if chosen is None:
            return {}
        points = [{"megabytes": megabytes, "ms": ms} for megabytes, ms in _groups(rows)[chosen]]
        return {COMM_FILE: {"schema_version": FILE_SCHEMA_VERSION, "world_size": chosen[-1], "allreduce": points}}


def _case(operation: str, size_mib: float, dtype: str, about: Mapping[str, Cell]) -> Case:
    width, ranks = ELEMENT_BYTES[dtype], int(about["processes"])
    count = max(1, round(size_mib * MIB / width))
    if operation in DIVIDED:
        count = max(1, count // ranks) * ranks
    part = count // ranks if operation in DIVIDED else count
    columns = {"operation": operation, **about, "size": count * width, "count": part, "type": dtype}
    return Case(f"{operation} {size_mib:g} MiB {dtype} {about['backend']} x{ranks}", [count], dtype, columns)


def _bandwidths(case: Case, ms: NDArray[np.float64]) -> Columns:
    p95, p99 = map(float, np.percentile(ms, (95, 99)))
    size, factor = (
        int(case.columns["size"]),
        BUS_FACTORS[str(case.columns["operation"])](int(case.columns["processes"])),
    )
    algbw = size / (float(ms.mean()) * 1e6)
    times: Columns = {"time": 1e3 * float(ms.mean()), "algbw": algbw, "busbw": algbw * factor, "p95": p95, "p99": p99}
    return {**times, "least_bytes": round(size * factor)}


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _why_not(backend: str, processes: int) -> str | None:
    """Why a back end cannot run here at all."""
    if backend == "gloo":
        return None
    gpus = _gpus()
    if backend == "nccl" and gpus < processes:
        return f"NCCL wants a GPU for each of {processes} processes, here are {gpus}"
    return None if gpus else "no GPU here"


def _group(row: Row) -> Group:
    columns = row.columns
    return str(columns["operation"]), str(columns["backend"]), row.dtype, int(columns["processes"])


def _groups(rows: Sequence[Row]) -> dict[Group, Points]:
    """Size in MB and median time in ms of what was measured."""
    found: dict[Group, list[tuple[float, float]]] = {}
    for row in rows:
        if row.p50 is not None:
            found.setdefault(_group(row), []).append((mb(int(row.columns["size"])), row.p50))
    return dict(found)


def _fits(rows: Sequence[Row]) -> dict[Group, dict[str, object]]:
    """Of what was measured at more than one size."""
    several = {group: points for group, points in _groups(rows).items() if len({size for size, _ in points}) > 1}
    return {group: fit_alpha_beta(points) for group, points in several.items()}


def _for_comm_model(rows: Sequence[Row]) -> Group | None:
    """The all-reduce that was measured first."""
    return next((group for group in _groups(rows) if group[0] == "all_reduce"), None)


def _title(group: Group) -> str:
    operation, backend, dtype, processes = group
    return f"{operation} {dtype} {backend} x{processes}"


def _faults(row: Row) -> list[str]:
    faults = []
    if row.columns.get("#wrong"):
        faults.append("elements differ from the known result; this collective is broken")
    if row.columns.get("unequal"):
        faults.append(f"the bytes of {row.columns['unequal']} ranks differ from those of rank 0")
    return faults


def _fit_line(group: Group, fit: Mapping[str, Any]) -> str:
    alpha, beta, r2, errors = (fit[key] for key in ("alpha_ms", "beta_ms_per_mb", "r2", "errors"))
    off = ", ".join(f"{each['relative']:+.0%} at {each['megabytes']:.3g} MB" for each in errors)
    quality = "" if r2 is None else f", R² {r2:.4f}, off by {off}"
    unknown = "; these sizes are too few or too noisy to give the latency" if alpha < 0 else ""
    return f"{_title(group)}: {alpha:.3g} ms + {beta:.3g} ms/MB{quality}{unknown}"


def fit_alpha_beta(points: Points) -> dict[str, object]:
    """`ms = alpha + beta * MB` by least squares of the relative errors, these at each size, and R² of more than two.

    Where sizes span decades, absolute errors would let the largest alone decide, and latency would be noise.

    Args:
        points: (MB, ms), at least two different sizes.
    """
    sizes, times = np.array(points, dtype=float).T
    beta, alpha = np.polyfit(sizes, times, 1, w=1 / times)
    residuals = times - (alpha + beta * sizes)
    errors = zip(sizes, residuals / times, strict=True)
    spread = float(((times - times.mean()) ** 2).sum())
    return {
        "alpha_ms": float(alpha),
        "beta_ms_per_mb": float(beta),
        "r2": 1 - float((residuals**2).sum()) / spread if spread > 0 and len(points) > 2 else None,
        "errors": [{"megabytes": float(size), "relative": float(error)} for size, error in errors],
    }
