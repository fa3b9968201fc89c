"""Every figure, drawn from made runs: no text covers another, no panel is empty, and scales are what they should be."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import get_args

import matplotlib
import numpy as np
import polars as pl
import pytest
from compared import ARMS, compared
from compressed_runs import compressed_arms
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

from dynbench.analysis.figures import FIGURES, charts, draw_figure
from dynbench.analysis.figures.bench import HELD, KERNEL_PHASES, KINDS, MEMORY, MOMENTS, STEP
from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.merge import merge_run
from dynbench.bench.attention import Flash
from dynbench.bench.collectives import BUS_FACTORS
from dynbench.bench.precision import HALF, SUMS
from dynbench.config.layers import load_config
from dynbench.experiment.solve_run import SolveOptions, run_solve
from dynbench.plugins.benchmarks import Way
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.row_writer import Call, CallWriter
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.traces import Trace
from dynbench.table_text import csv_text


def training(make_run: Callable[..., Run], store: RunStore) -> list[list[ArmView]]:
    """Real ranks, and virtual ones that run several micro-batches, each in two numbers; and ranks that compress."""

    def arm(name: str, ranks: int, **fields: object) -> ArmView:
        return ArmView(name, (merge_run(make_run(name, world_size=ranks, **fields)),))

    def virtual(name: str, ranks: int) -> ArmView:
        overrides = ("launch.launcher=virtual", f"launch.world_size={ranks}")
        return arm(name, ranks, global_batch=90, micro_batches=2, overrides=overrides)

    unequal = [[make("static", ranks), make("partition", 2)] for make, ranks in ((arm, 4), (virtual, 30))]
    compressing = [compressed_arms(make_run), compressed_arms(make_run, measured=False)]
    epochs = [trained_for_epochs(arm("static", 2)), trained_for_epochs(arm("partition", 2))]
    many = [ArmView(f"{number} of many arms", unequal[0][number % 2].runs) for number in range(12)]
    return [*unequal, many, [exchanging(make_run, arm) for arm in SENDING], *compressing, epochs]


def trained_for_epochs(arm: ArmView) -> ArmView:
    """The same in two epochs, evaluated after each."""
    (run,) = arm.runs
    config = run.facts.config
    config = config.model_copy(update={"train": config.train.model_copy(update={"epochs": 2})})
    each = config.train.epoch_steps
    assert each is not None
    evaluations = pl.DataFrame({"step": [each - 1, 2 * each - 1], "loss": [0.5, 0.4], "accuracy": [0.8, 0.9]})
    facts = dataclasses.replace(run.facts, config=config)
    return ArmView(arm.label, (dataclasses.replace(run, facts=facts, evaluations=evaluations),))


SENDING = {
    "naive": ("naive", 25, 3),
    "overlap": ("overlap", 25, 5),
    "bucketed": ("bucketed", 25, 9),
    "made": ("bucketed", 1, 15),
}
"""Arm to its strategy, its size of buckets in MiB, and how many messages of a step it is made to have sent."""


def exchanging(make_run: Callable[..., Run], arm: str) -> ArmView:
    """An arm that kept when its collectives were under way."""
    name, size, calls = SENDING[arm]
    ms = {"comm_ms": 8.0, "comm_sum_ms": 9.0, "hidden_comm_ms": 2.0}
    sent = {"collectives": calls, "bytes_raw": 4e7, "bytes_wire": 4e7}
    run = make_run("static", overrides=(f"sync.name={name}", f"sync.bucket_mb={size}"), extra={**ms, **sent})
    for rank in range(2):
        with CallWriter(run.calls_file(rank)) as writer:
            for step in range(50):
                starts = [10**9 * step + 10**6 * (number + rank) for number in range(calls)]
                each = [
                    Call("all_reduce", -1, step * calls + n, 10**6, at, at + 3 * 10**6) for n, at in enumerate(starts)
                ]
                writer.write(step, each)
    return ArmView(arm, (merge_run(run),))


def solved(make_run: Callable[..., Run], store: RunStore) -> list[Run]:
    lengths = np.clip(np.random.default_rng(3).lognormal(3, 1, 500).astype(np.int64), 2, 300)
    policies = ("static", "partition", "prefix", "window")
    options = SolveOptions([Trace("made", lengths, "here")], (2, 4), policies, windows=(2,), steps=8)
    return [run_solve(load_config(), options, store).run]


def cells(make_run: Callable[..., Run], store: RunStore) -> list[Run]:
    together, found = store.create("compare", "cells"), []
    for launcher in ("torchrun", "virtual"):
        cell = store.create("compare", "cell")
        summary = {"launcher": launcher, "world_size": 2, "global_batch": 8}
        runs, candidate = [{"id": "a", "summary": summary}], compared(overhead_share=0.4).model_dump()
        write_json(cell.path / "comparison.json", {"runs": runs, "arms": ARMS, "comparisons": [candidate]})
        found.append({"settings": {"train.global_batch": 8}, "comparison": cell.id})
    write_json(together.path / "cells.json", {"cells": found})
    return [together]


def benched(make_run: Callable[..., Run], store: RunStore) -> list[Run]:
    run = store.create("bench", "collectives")
    shown = {"status": "ok", "processes": 2, "backend": "gloo", "type": "float32", "n": 20, "busbw": 1.0}
    times = {"p20": 1.0, "p50": 2.0, "p80": 3.0}
    rows = [{**shown, "operation": each, "size": size, **times} for each in BUS_FACTORS for size in (2**20, 2**24)]
    write_text(run.path / "rows.csv", csv_text(rows))
    model = {"status": "ok", "size": "tiny", "context": 64, "dtype": "float32", "device": "cpu", "part": "kind", "n": 5}
    kinds = {"calls": 3, "mean": 1.0, "share": 0.1}
    kernels = store.create("bench", "nsys")
    shares = [{**model, **kinds, "phase": phase, "kernel": each} for phase in KERNEL_PHASES for each in KINDS]
    write_text(kernels.path / "rows.csv", csv_text(shares))
    half = store.create("bench", "precision")
    shown = {"status": "ok", "device": "cpu", "shape": "[1000]", "n": 1, "mean": 1.0, "sd": 0.1}
    studied = [("sum", f"sum: {label}", types[1], 0.1 * at) for at, (label, types) in enumerate(SUMS.items())]
    studied += [("time", f"forward and backward in {kind}", kind, None) for kind in ("float32", *HALF)]
    names = ("study", "case", "dtype", "reference_error")
    write_text(half.path / "rows.csv", csv_text({**shown, **dict(zip(names, each, strict=True))} for each in studied))
    single = store.create("bench", "flash")
    shape = {"status": "ok", "dtype": "float32", "batch": 1, "causal": 1, "device": "cpu", "n": 20, **times}
    rows = [
        {**shape, "way": way, "pass": each, "length": length, "channels": 64, "saved_mb": 1.0, "peak_mb": 2.0}
        for way in get_args(Way)
        for each in Flash.passes
        for length in (256, 512)
    ]
    write_text(single.path / "rows.csv", csv_text(rows))
    return [run, kernels, half, single, *modelled(store)]


def modelled(store: RunStore) -> list[Run]:
    """Runs of the benchmarks of whole language models."""
    shape = {"status": "ok", "size": "tiny", "context": 64, "batch": 4, "dtype": "float32", "device": "cpu", "n": 5}
    steps, memory, optimizer = (store.create("bench", name) for name in ("transformer", "memory", "optimizer"))
    rows = [
        {**shape, "phase": phase, "compiled": compiled, "warmup": 5, "mean": 1.0, "sd": 0.1}
        for compiled in (False, True)
        for phase in (*(part.column for part in STEP), "step")
    ]
    write_text(steps.path / "rows.csv", csv_text(rows))
    rows = [{**shape, "phase": phase, "quantity": "peak", "p50": 2.0, "before_mb": 1.0} for phase in MEMORY]
    write_text(memory.path / "rows.csv", csv_text(rows))
    line = {key: shape[key] for key in ("size", "dtype", "context", "batch", "device")} | {"ms": [0, 1], "mb": [1, 2]}
    lines = [json.dumps({**line, "phase": phase}) for phase in MEMORY]
    write_text(memory.ranks_dir / "timelines.jsonl", "\n".join(lines) + "\n")
    held = {**shape, "processes": 2, "quantity": "memory", "p50": 1.0}
    rows = [
        {**held, "way": way, "moment": moment, "part": part}
        for way in ("adamw", "zero1")
        for moment in MOMENTS
        for part in (*(part.column for part in HELD), "peak")
    ]
    write_text(optimizer.path / "rows.csv", csv_text(rows))
    return [steps, memory, optimizer]


SOURCES: Mapping[str, Callable[..., list[object]]] = {
    "train": training,
    "solve": solved,
    "bench": benched,
    "cells": cells,
}


def labels_of(axis: Axis) -> list[Text]:
    """The labels of the ticks that are on an axis; matplotlib keeps some beyond its ends."""
    low, high = sorted(axis.get_view_interval())
    labels = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [label for label in labels if label.get_visible() and label.get_text()]


def faults(figure: Figure) -> list[str]:
    """Texts that lie on another or leave the figure, panels without anything in them, labels of axes without ticks."""
    figure.draw_without_rendering()
    axes = [(each.xaxis, each.yaxis) for each in figure.axes]
    ticks = {id(label) for pair in axes for axis in pair for label in axis.get_majorticklabels()}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    texts = [text for text in texts if id(text) not in ticks]
    texts += [label for pair in axes for axis in pair for label in labels_of(axis)]
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in texts]
    found = [f"{one!r} on {other!r}" for (one, a), (other, b) in combinations(boxes, 2) if a.overlaps(b)]
    found += [f"{text!r} leaves" for text, box in boxes if box.x0 < 0 or box.x1 > figure.bbox.x1 + 1]
    found += [f"{each.get_title()!r} is empty" for each in figure.axes if not each.has_data()]
    named = [axis for pair in axes for axis in pair if axis.label.get_text() and len(axis.get_majorticklocs())]
    return [*found, *(f"{axis.label.get_text()!r} has no ticks" for axis in named if not labels_of(axis))]


@pytest.mark.slow
@pytest.mark.parametrize("kind", FIGURES)
def test_every_figure_is_drawn_without_a_fault(make_run: Callable[..., Run], store: RunStore, kind: str) -> None:
    drawn = set()
    for source in SOURCES[kind](make_run, store):
        for name in FIGURES[kind]:
            with matplotlib.rc_context(charts.RC):
                drawing = draw_figure(kind, name, source)
                if drawing is not None:
                    drawn.add(name)
                    assert faults(drawing.figure) == [], name
                    assert drawing.table.height, name
    assert drawn == set(FIGURES[kind])
