"""The all-reduce benchmark: its options, its arithmetic, what it finds wrong, and the file that `train` reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dynbench.bench.allreduce import contribution, known_sum, measure_allreduce
from dynbench.bench.base import Measured
from dynbench.bench.collectives import ELEMENT_BYTES, Collectives, bus_factor, fit_alpha_beta
from dynbench.bench.options import read_options
from dynbench.bench.rank import measured_row
from dynbench.engine.rank.rank_process import RankContext
from dynbench.errors import ConfigError, UsageError
from dynbench.plugins import BENCHMARKS
from dynbench.plugins.benchmarks import MOST_RANKS, CollectivesOptions

CPU = torch.device("cpu")


@pytest.fixture
def alone() -> Iterator[RankContext]:
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield RankContext(0, 0, 1, CPU)
    dist.destroy_process_group()


def measured(context: RankContext, dtype: str = "float32", reduce: object = dist.all_reduce) -> Measured:
    (case,) = Collectives(CollectivesOptions(sizes_mib=(0.001,), dtype=dtype)).cases()  # type: ignore[arg-type]
    return measure_allreduce(case, 4, 1, context, reduce)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ELEMENT_BYTES)
def test_a_right_collective_has_nothing_wrong(alone: RankContext, dtype: str) -> None:
    (case,) = Collectives(CollectivesOptions(sizes_mib=(0.001,), dtype=dtype)).cases()  # type: ignore[arg-type]
    row = measured_row(case, measured(alone, dtype), CPU)
    columns = row.columns
    assert (columns["#wrong"], row.reference_error, row.status, row.n) == (0, 0.0, "ok", 4)
    assert row.p20 is not None and row.p50 is not None and row.p80 is not None and row.mean is not None
    assert 0 < row.p20 <= row.p50 <= row.p80 <= float(columns["p95"]) <= float(columns["p99"])
    assert columns["size"] == int(columns["count"]) * ELEMENT_BYTES[dtype]
    assert columns["algbw"] == pytest.approx(int(columns["size"]) / (row.mean * 1e6))
    assert columns["busbw"] == float(columns["algbw"]) * bus_factor(1)


def test_a_wrong_collective_is_counted_and_told(alone: RankContext) -> None:
    def shifted(buffer: Tensor) -> None:
        buffer[10:] += 1

    benchmark = Collectives(CollectivesOptions(sizes_mib=(0.001,)))
    (case,) = benchmark.cases()
    row = measured_row(case, measured(alone, reduce=shifted), CPU)
    assert row.columns["#wrong"] == case.shape[0] - 10 and row.reference_error == 1.0
    assert "broken" in benchmark.said([row])[0]


@pytest.mark.parametrize("world_size", [2, 4, 5, 6, MOST_RANKS])
@pytest.mark.parametrize("fault", ["a rank left out", "a rank twice", "maximum", "moved by one"])
def test_every_wrong_sum_differs_from_the_known_one(world_size: int, fault: str) -> None:
    parts = [contribution(100, rank, torch.float32, CPU) for rank in range(world_size)]
    right = known_sum(100, world_size, torch.float32, CPU)
    assert torch.equal(torch.stack(parts).sum(0), right)
    wrong = {
        "a rank left out": torch.stack(parts[:-1]).sum(0),
        "a rank twice": torch.stack([*parts, parts[-1]]).sum(0),
        "maximum": torch.stack(parts).amax(0),
        "moved by one": right.roll(1),
    }[fault]
    assert not torch.equal(wrong, right)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_known_sum_is_exact_in_every_type(dtype: torch.dtype) -> None:
    exact = known_sum(1000, MOST_RANKS, torch.float64, CPU)
    assert torch.equal(known_sum(1000, MOST_RANKS, dtype, CPU).double(), exact)


def test_the_fit_finds_latency_and_bandwidth() -> None:
    fit = fit_alpha_beta([(megabytes, 0.5 + 0.2 * megabytes) for megabytes in (1.0, 10.0, 100.0)])
    assert (fit["alpha_ms"], fit["beta_ms_per_mb"], fit["r2"]) == pytest.approx((0.5, 0.2, 1.0))
    assert isinstance(fit["errors"], list) and len(fit["errors"]) == 3
    assert fit_alpha_beta([(1.0, 1.0), (2.0, 3.0)])["r2"] is None, "a line meets any two points"
    bent = fit_alpha_beta([(1.0, 1.0), (10.0, 1.0), (100.0, 9.0)])
    assert isinstance(bent["r2"], float) and bent["r2"] < 1


def test_options_from_the_command_line() -> None:
    options = read_options("collectives", ["sizes_mib=1,2.5", "processes=4", "dtype=bfloat16"])
    assert options == CollectivesOptions(sizes_mib=(1, 2.5), processes=4, dtype="bfloat16")
    assert read_options("collectives", ["sizes_mib=3"]) == CollectivesOptions(sizes_mib=(3,))
    assert isinstance(options, CollectivesOptions)
    assert [case.shape for case in Collectives(options).cases()] == [[2**19], [round(2.5 * 2**19)]]


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read_options("collectives", ["size_mib=1", "processes=1", "sizes_mib=0", "dtype=float23", "nothing"])
    problems = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 5, problems
    for said in ("Did you mean 'sizes_mib'?", "--set processes: 1", "--set sizes_mib", "'float23'", "--set nothing"):
        assert said in problems
    with pytest.raises(UsageError, match="Did you mean 'collectives'"):
        read_options("colectives", [])


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_cases_of_different_names(name: str) -> None:
    entry = BENCHMARKS.find(name)
    names = [case.name for case in entry.load()(entry.options()).cases()]
    assert names and all(names) and len(set(names)) == len(names)
