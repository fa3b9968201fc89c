"""The last steps of the warm-up under torch.profiler: a rank's trace, and what its time went to by phase and operation.

Communication is what the profiler sees of the back end, gloo's work or NCCL's kernels; it is put down to the logical
operation of the wire that began it, and to the phase in which it is under way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity

from dynbench.engine.rank.timers import WITHIN
from dynbench.runs import records
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.wire.segment import PREFIX, named_range
from dynbench.wire.traffic import SENT, union_ms

STEP = "step"
NS_PER_US = 1000

Span = tuple[float, float]


Event = Any
"""A torch `FunctionEvent`, of which name, time_range, device_type and is_user_annotation are read."""


@dataclass
class Profile:
    """Profiles some steps of a rank, or none.

    Args:
        run: its folder.
        rank: the rank.
        device: its device.
        steps: which, without a gap; none profiles nothing.
        meet: returns when every rank has called it; writing a trace takes some ranks longer.
    """

    run: Run
    rank: int
    device: torch.device
    steps: range
    meet: Callable[[], None]
    _profiler: Any = None
    _step: Any = None

    def begin(self, step: int) -> bool:
        """Before a step, out of its time; whether that took time, so that clocks have to begin anew."""
        started = len(self.steps) > 0 and step == self.steps[0]
        if started:
            on_gpu = self.device.type == "cuda"
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
            threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)  # a compressor has its own
            self._profiler = torch.profiler.profile(activities=activities, acc_events=True, experimental_config=threads)
            self._profiler.start()
            self.meet()
        if step in self.steps:
            self._step = named_range(STEP, self.device)
            self._step.__enter__()
        return started

    def end(self, step: int) -> None:
        """After a step, its device synchronised."""
        if step not in self.steps:
            return
        self._step.__exit__(None, None, None)
        if step == self.steps[-1]:
            self._profiler.stop()
            self._write()
            self._profiler = None
            self.meet()

    def _write(self) -> None:
        folder = self.run.profiler_dir
        folder.mkdir(exist_ok=True)
        self._profiler.export_chrome_trace(str(folder / f"rank_{self.rank}.pt.trace.json"))
        rows, step_ms = table_of(self._profiler.events(), len(self.steps), dist.get_world_size())
        found = records.RankProfile(self.rank, self.steps[0], len(self.steps), step_ms, rows)
        facts = {"schema_version": records.PROFILE_SCHEMA_VERSION, **asdict(found)}
        write_json(self.run.profile_file(self.rank), facts)


def profiled_steps(warmup_steps: int, steps: int) -> range:
    """Which steps of a run are profiled: the last ones of its warm-up."""
    return range(warmup_steps - steps, warmup_steps)


def table_of(events: Iterable[Event], steps: int, world_size: int) -> tuple[list[records.ProfileRow], float]:
    """What the time of a step went to, and how long it was in the profile, ms.

    Args:
        events: of the profiler.
        steps: profiled.
        world_size: ranks.

    Returns:
        The rows of a `RankProfile`, and its `step_ms`.
    """
    ranges, communication, compute = _sorted_out(events, world_size)
    step_ms = union_ms(ranges[STEP]) / steps
    phases: dict[str, Sequence[Span]] = {phase: ranges[phase] for phase in WITHIN}
    phases["other"] = _without(ranges[STEP], [span for spans in phases.values() for span in spans])
    of_wire = [span for name, spans in communication.items() if name != records.BY_ITSELF for span in spans]
    rows = []
    for phase, windows in phases.items():
        for operation, spans in {records.COMPUTE: compute, **communication, records.COMMUNICATION: of_wire}.items():
            if inside := _clipped(spans, windows):
                ms = union_ms(inside) / steps
                share = ms / step_ms if step_ms else 0.0
                rows.append(records.ProfileRow(phase, operation, len(inside) / steps, ms, share))
    return rows, step_ms


def _sorted_out(
    events: Iterable[Event], world_size: int
) -> tuple[dict[str, list[Span]], Mapping[str, list[Span]], list[Span]]:
    """Spans of a profile in nanoseconds.

    Returns:
        Those of the steps and phases, by name; of what the back end had under way, by logical operation; and of
        operators, on a GPU of kernels.
    """
    ranges: dict[str, list[Span]] = defaultdict(list)
    sent: list[tuple[float, float, str]] = []
    on_cpu: list[Span] = []
    on_gpu: list[Span] = []
    for event in events:
        span = event.time_range.start * NS_PER_US, event.time_range.end * NS_PER_US
        kernel = "CUDA" in str(event.device_type)
        if event.name.startswith(PREFIX):
            if not kernel:
                ranges[event.name.removeprefix(PREFIX)].append(span)
        elif (kind := _kind(event.name, kernel and not event.is_user_annotation)) is not None:
            sent.append((*span, kind))
        elif kernel:
            if not event.is_user_annotation:  # of code that launched kernels, torch's own among it
                on_gpu.append(span)
        elif event.name.startswith("aten::"):
            on_cpu.append(span)
    begun = sorted((start, name) for name, spans in ranges.items() if name in SENT for start, _ in spans)
    return ranges, _by_operation(sorted(sent), begun, world_size), on_gpu or on_cpu


def _by_operation(
    sent: Iterable[tuple[float, float, str]], begun: Sequence[tuple[float, str]], world_size: int
) -> dict[str, list[Span]]:
    """The back end's work by the operation of the wire: each has the first of its kind that no other has.

    Args:
        sent: when it was under way, and what it is called, in order; it begins some time after it was requested.
        begun: when which operation of the wire was requested, in order.
        world_size: broadcasts that stand for one all-gather.
    """
    found: dict[str, list[Span]] = defaultdict(list)
    left = [
        (at, name, dict(_WORK[name]) | ({"broadcast": world_size} if name == "all_gather" else {}))
        for at, name in begun
    ]
    for start, end, kind in sent:
        if kind in _NCCL:
            found[_NCCL[kind]].append((start, end))
            continue
        operation = records.BY_ITSELF
        for at, name, kinds in left:
            if at <= start and kinds.get(kind):
                kinds[kind] -= 1
                operation = name
                break
        found[operation].append((start, end))
    return found


_WORK: Mapping[str, Mapping[str, int]] = {
    "all_reduce": {"all_reduce": 1},
    "reduce_scatter": {"all_to_all": 1, "reduce_scatter": 1},
    "all_gather": {"all_gather": 1},
    "all_to_all": {"all_to_all": 1, "SendRecv": 1},
    "broadcast": {"broadcast": 1},
    "send": {"send": 1, "SendRecv": 1},
    "receive": {"recv": 1, "SendRecv": 1},
}
"""What gloo calls its work of each operation, and how much of it there is; and NCCL's kernel that is of several."""
_NCCL: Mapping[str, str] = {
    "AllReduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
    "AllGather": "all_gather",
    "Broadcast": "broadcast",
}
"""What NCCL's other kernels have in their names; they do not say who requested them."""


def _kind(name: str, kernel: bool) -> str | None:
    """What an event is of the back end's own work, of gloo or a kernel of NCCL; None for others."""
    if kernel:
        return next((each for each in (*_NCCL, "SendRecv") if "nccl" in name.lower() and each in name), None)
    return name.removeprefix("gloo:") if name.startswith("gloo:") else None


def _clipped(spans: Iterable[Span], windows: Sequence[Span]) -> list[Span]:
    """What of the spans lies in the windows."""
    cut = ((max(start, first), min(end, last)) for start, end in spans for first, last in windows)
    return [(start, end) for start, end in cut if start < end]


def _without(spans: Iterable[Span], holes: Iterable[Span]) -> list[Span]:
    """What of the spans, which do not overlap, lies in none of the holes."""
    left, cuts = [], sorted(holes)
    for start, end in spans:
        for first, last in cuts:
            if first >= end or last <= start:
                continue
            if first > start:
                left.append((start, first))
            start = max(start, last)
        if start < end:
            left.append((start, end))
    return left
