"""What a profiled step's time went to, from made-up events."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dynbench.engine.rank.profile import profiled_steps, table_of
from dynbench.runs.records import ProfileRow


def event(
    name: str, start_ms: float, end_ms: float, device: str = "DeviceType.CPU", annotates: bool = False
) -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        time_range=SimpleNamespace(start=start_ms * 1e3, end=end_ms * 1e3),
        device_type=device,
        is_user_annotation=annotates,
    )


STEPS = [
    event("dynbench::step", 0, 100), event("dynbench::step", 100, 200),
    event("dynbench::forward", 10, 30), event("dynbench::forward", 110, 130),
    event("dynbench::backward", 30, 80), event("dynbench::backward", 130, 180),
    event("dynbench::optimizer", 80, 95), event("dynbench::optimizer", 180, 195),
]  # fmt: skip


def table(*events: SimpleNamespace) -> list[ProfileRow]:
    rows, step_ms = table_of([*STEPS, *events], 2, 2)
    assert step_ms == 100 and all(row.share == pytest.approx(row.ms / 100) for row in rows)
    return rows


def ms_by_place(*events: SimpleNamespace) -> dict[tuple[str, str], float]:
    """Milliseconds of two steps."""
    return {(row.phase, row.operation): 2 * row.ms for row in table(*events)}


def test_time_by_phase_and_operation_per_step() -> None:
    """A bucket under way from the backward pass into the optimizer, one that overlaps it, and what computes."""
    sent = [
        event("dynbench::all_reduce", 40, 41), event("gloo:all_reduce", 40.5, 70),
        event("dynbench::reduce_scatter", 50, 51), event("gloo:all_to_all", 50.5, 90),
        event("gloo:broadcast", 96, 98),
    ]  # fmt: skip
    computed = [event("aten::mm", 12, 28), event("aten::add", 20, 25), event("aten::mm", 135, 145)]
    assert ms_by_place(*sent, *computed) == pytest.approx(
        {
            ("forward", "compute"): 16,
            ("backward", "compute"): 10,
            ("backward", "all_reduce"): 29.5,
            ("backward", "reduce_scatter"): 29.5,
            ("backward", "communication"): 39.5,
            ("optimizer", "reduce_scatter"): 10,
            ("optimizer", "communication"): 10,
            ("other", "past the wire"): 2,
        }
    )
    assert [row.calls for row in table(*computed) if row.phase == "forward"] == [1]


def test_work_that_begins_late_is_still_that_of_who_asked_for_it() -> None:
    """An all-gather of two broadcasts asked for behind a bucket, and what nobody of the wire asked for."""
    sent = [
        event("gloo:all_reduce", 11, 20), event("dynbench::all_reduce", 40, 41), event("dynbench::all_gather", 41, 42),
        event("gloo:all_reduce", 45, 50), event("gloo:broadcast", 50, 54), event("gloo:broadcast", 54, 58),
        event("gloo:broadcast", 60, 61),
    ]  # fmt: skip
    assert ms_by_place(*sent) == pytest.approx(
        {
            ("forward", "past the wire"): 9,
            ("backward", "all_reduce"): 5,
            ("backward", "all_gather"): 8,
            ("backward", "past the wire"): 1,
            ("backward", "communication"): 13,
        }
    )


def test_on_a_gpu_kernels_count_and_not_what_launched_them() -> None:
    events = [
        event("dynbench::all_reduce", 40, 41),
        event("ncclDevKernel_AllReduce_Sum", 40.5, 60, "DeviceType.CUDA"),
        event("nccl:all_reduce", 35, 70, "DeviceType.CUDA", annotates=True),
        event("Optimizer.step#AdamW.step", 10, 90, "DeviceType.CUDA", annotates=True),
        event("dynbench::all_reduce", 40, 60, "DeviceType.CUDA"),
        event("aten::mm", 12, 13), event("gemm", 14, 24, "DeviceType.CUDA"),
    ]  # fmt: skip
    assert ms_by_place(*events) == pytest.approx(
        {("forward", "compute"): 10, ("backward", "all_reduce"): 19.5, ("backward", "communication"): 19.5}
    )


def test_a_kernel_that_sends_and_receives_is_of_the_operation_that_asked_for_it() -> None:
    """NCCL has one name for it in all-to-alls, sends and receives; and a broadcast keeps its own."""
    kernel = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    events = [
        event("dynbench::all_to_all", 31, 32), event("dynbench::receive", 33, 34), event("dynbench::send", 35, 36),
        event("dynbench::broadcast", 37, 38),
        event(kernel, 40, 48, "DeviceType.CUDA"), event(kernel, 48, 50, "DeviceType.CUDA"),
        event(kernel, 50, 51, "DeviceType.CUDA"), event("ncclDevKernel_Broadcast_RING", 51, 55, "DeviceType.CUDA"),
        event(kernel, 60, 66, "DeviceType.CUDA"),
    ]  # fmt: skip
    expected = {"all_to_all": 8, "receive": 2, "send": 1, "broadcast": 4, "past the wire": 6, "communication": 15}
    assert ms_by_place(*events) == pytest.approx({("backward", name): ms for name, ms in expected.items()})


def test_the_last_steps_of_the_warm_up_are_profiled() -> None:
    assert list(profiled_steps(10, 3)) == [7, 8, 9]
    assert not profiled_steps(10, 0)
