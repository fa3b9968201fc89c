"""What a profiled step's time went to, from made-up events."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dynbench.engine.rank.profile import profiled_steps, table_of

KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
CPU, GPU, OF_CODE = ("CPU", False), ("CUDA", False), ("CUDA", True)
"""Where an event is, and whether it only stands for the code that launched kernels."""
Event = tuple[str, float, float, tuple[str, bool]]


def on(place: tuple[str, bool], *events: tuple[str, float, float]) -> list[Event]:
    """Events of one place, by name, start and end in ms."""
    return [(*event, place) for event in events]


PHASES = (("step", 0, 100), ("forward", 10, 30), ("backward", 30, 80), ("optimizer", 80, 95))
STEPS = on(CPU, *((f"dynbench::{name}", begin + at, end + at) for at in (0, 100) for name, begin, end in PHASES))
COMPUTED = on(CPU, ("aten::mm", 12, 28), ("aten::add", 20, 25), ("aten::mm", 135, 145))
SENT = on(
    CPU,
    *(("dynbench::all_reduce", 40, 41), ("gloo:all_reduce", 40.5, 70)),
    *(("dynbench::reduce_scatter", 50, 51), ("gloo:all_to_all", 50.5, 90), ("gloo:broadcast", 96, 98)),
)
SENT_LATE = on(
    CPU,
    *(("gloo:all_reduce", 11, 20), ("dynbench::all_reduce", 40, 41), ("dynbench::all_gather", 41, 42)),
    *(("gloo:all_reduce", 45, 50), ("gloo:broadcast", 50, 54), ("gloo:broadcast", 54, 58), ("gloo:broadcast", 60, 61)),
)
SENT_BY_KERNELS = [
    *on(CPU, ("dynbench::all_reduce", 40, 41), ("aten::mm", 12, 13)),
    *on(GPU, ("ncclDevKernel_AllReduce_Sum", 40.5, 60), ("dynbench::all_reduce", 40, 60), ("gemm", 14, 24)),
    *on(OF_CODE, ("nccl:all_reduce", 35, 70), ("Optimizer.step#AdamW.step", 10, 90)),
]
SENT_BY_ONE_KERNEL = [
    *on(CPU, ("dynbench::all_to_all", 31, 32), ("dynbench::receive", 33, 34), ("dynbench::send", 35, 36)),
    *on(CPU, ("dynbench::broadcast", 37, 38)),
    *on(GPU, (KERNEL, 40, 48), (KERNEL, 48, 50), (KERNEL, 50, 51), ("ncclDevKernel_Broadcast_RING", 51, 55)),
    *on(GPU, (KERNEL, 60, 66)),
]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [*SENT, *COMPUTED],
            {"forward compute": 16, "backward compute": 10, "backward all_reduce": 29.5}
            | {"backward reduce_scatter": 29.5, "backward communication": 39.5, "other past the wire": 2}
            | {"optimizer reduce_scatter": 10, "optimizer communication": 10},
        ),
        (
            SENT_LATE,
            {"forward past the wire": 9, "backward all_reduce": 5, "backward all_gather": 8}
            | {"backward past the wire": 1, "backward communication": 13},
        ),
        (SENT_BY_KERNELS, {"forward compute": 10, "backward all_reduce": 19.5, "backward communication": 19.5}),
        (
            SENT_BY_ONE_KERNEL,
            {"backward all_to_all": 8, "backward receive": 2, "backward send": 1, "backward broadcast": 4}
            | {"backward past the wire": 6, "backward communication": 15},
        ),
    ],
    ids=["overlapping buckets", "late work, and an all-gather of two broadcasts", "kernels", "one kernel of several"],
)
def test_time_by_phase_and_operation(events, expected):
    """Work is of the operation that asked for it, in the phases in which it is under way; ms of two steps."""
    seen = [
        SimpleNamespace(
            name=name,
            time_range=SimpleNamespace(start=start * 1e3, end=end * 1e3),
            device_type=f"DeviceType.{device}",
            is_user_annotation=annotates,
        )
        for name, start, end, (device, annotates) in (*STEPS, *events)
    ]
    rows, step_ms = table_of(seen, 2, 2)
    assert {f"{row.phase} {row.operation}": 2 * row.ms for row in rows} == pytest.approx(expected)
    assert step_ms == 100 and all(row.share == pytest.approx(row.ms / 100) for row in rows)


def test_the_last_steps_of_the_warm_up_are_profiled():
    assert list(profiled_steps(10, 3)) == [7, 8, 9]
    assert not profiled_steps(10, 0)
