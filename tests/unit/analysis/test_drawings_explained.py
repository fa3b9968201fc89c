"""Drawings are in English: in every other language the report explains each text that stands in them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import get_args

import matplotlib
import numpy as np
import polars as pl
import pytest
from compared import ARMS, compared
from compressed_runs import compressed_arms
from languages import english_words
from matplotlib.figure import Figure
from matplotlib.text import Text

from dynbench.analysis.figures import FIGURES, draw_figure, style
from dynbench.analysis.figures.bench_kernels import PHASES
from dynbench.analysis.figures.bench_models import MEMORY, MOMENTS, PARTS
from dynbench.analysis.figures.bench_models import PHASES as STEP_PHASES
from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.merge import merge_run
from dynbench.bench.attention import Flash
from dynbench.bench.collectives import BUS_FACTORS
from dynbench.bench.nsys_profile import KINDS
from dynbench.bench.packed_attention import WAYS
from dynbench.bench.precision import HALF, SUMS
from dynbench.config.load import load_config
from dynbench.experiment.report_texts import reading
from dynbench.experiment.solve_run import SolveOptions, run_solve
from dynbench.experiment.subject import Member, Subject
from dynbench.plugins.benchmarks import Way
from dynbench.report import LANGUAGES, RECORDS_LANGUAGE, load_template
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.calls import Call, CallWriter
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.traces import Trace
from dynbench.table_text import csv_text

OTHERS = [language for language in LANGUAGES if language != RECORDS_LANGUAGE]
NAMES = {"static", "partition", "prefix", "window", "made", "naive", "overlap", "bucketed", "none", "fp8"}
"""Arms, policies, strategies, compressors and traces: names, the same in every language."""


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
    return [*unequal, [exchanging(make_run, arm) for arm in SENDING], *compressing, epochs]


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


def probed(make_run: Callable[..., Run], store: RunStore) -> list[Run]:
    run = store.create("probe", "probe")
    accuracy = {"mape": 0.1, "rank_correlation": 0.9}
    trials = [
        {"rank": 0, "length": length, "n": n, "fits": n < 9, "peak_mem_mb": 1.0}
        for length in (32, 64)
        for n in (4, 8, 16)
    ]
    timings = [
        {"rank": 0, "n": n, "length": length, "ms": 1.0 + 0.1 * n * length, "held_out": n == 8}
        for length in (32, 64)
        for n in (4, 8, 16)
    ]
    cost = {"alpha_ms": 1.0, "beta_ms_per_token": 0.1, "gamma_ms_per_token2": 0.0, "heldout": {"measured": accuracy}}
    capacity = {"rank": 0, "length": 64, "max_batch": 8, "tested_ok": 8, "tested_fail": 16, "peak_mem_mb": 1.0}
    facts = {"device": "cpu", "precision": "fp32", "memory_limit_mb": 100.0, "world_size": 2, "global_batch": 32}
    rest = {"memory_model": None, "speeds": [1.0, 1.0], "allreduce": None, "soak": None, "predicted_speedup": {}}
    record = {
        **facts,
        **rest,
        "pad_to_multiple_of": 1,
        "workload": {},
        "capacity": [capacity],
        "tables": [[(32, 8), (64, 8)]],
        "trials": trials,
        "timings": timings,
        "cost_model": cost,
        "break_even_batch": None,
    }
    write_json(run.path / "probe.json", record)
    return [run]


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
    attention = store.create("bench", "packed_attention")
    layer = {"status": "ok", "samples": 9, "width": 256, "heads": 4, "device": "cpu", "n": 20, **times}
    rows = [{**layer, "way": way, "tokens": tokens} for way in WAYS for tokens in (256, 512)]
    write_text(attention.path / "rows.csv", csv_text(rows))
    model = {"status": "ok", "size": "tiny", "context": 64, "dtype": "float32", "device": "cpu", "part": "kind", "n": 5}
    kinds = {"calls": 3, "mean": 1.0, "share": 0.1}
    kernels = store.create("bench", "nsys")
    shares = [{**model, **kinds, "phase": phase, "kernel": each} for phase in PHASES for each in (*KINDS, "other")]
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
    return [run, attention, kernels, half, single, *modelled(store)]


def modelled(store: RunStore) -> list[Run]:
    """Runs of the benchmarks of whole language models."""
    shape = {"status": "ok", "size": "tiny", "context": 64, "batch": 4, "dtype": "float32", "device": "cpu", "n": 5}
    steps, memory, optimizer = (store.create("bench", name) for name in ("transformer", "memory", "optimizer"))
    rows = [
        {**shape, "phase": phase, "compiled": compiled, "warmup": 5, "mean": 1.0, "sd": 0.1}
        for compiled in (False, True)
        for phase in (*STEP_PHASES, "step")
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
        for part in (*PARTS, "peak")
    ]
    write_text(optimizer.path / "rows.csv", csv_text(rows))
    return [steps, memory, optimizer]


SOURCES: Mapping[str, Callable[..., list[object]]] = {
    "train": training,
    "solve": solved,
    "probe": probed,
    "bench": benched,
    "cells": cells,
}


def texts(figure: Figure) -> set[str]:
    """What is written in a drawing, less the small print, numbers and names."""
    found = (text for text in figure.findobj(Text) if text.get_fontsize() != style.CAPTION_POINTS or text.axes)
    written = {text.get_text().replace("\n", " ") for text in found if text.get_visible()}
    return {text for text in written if re.search("[a-z]{2}", re.sub(r"\$.*?\$", "", text)) and text not in NAMES}


def quoted(text: str) -> list[re.Pattern[str]]:
    """The texts that an explanation quotes; an ellipsis stands for anything."""
    return [re.compile(re.escape(code).replace("…", ".+?")) for code in re.findall("`([^`]+)`", text)]


@pytest.mark.slow
@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("kind", FIGURES)
def test_every_text_in_a_drawing_is_explained(
    make_run: Callable[..., Run], store: RunStore, language: str, kind: str
) -> None:
    labels, drawn = load_template(language).labels, set()
    for source in SOURCES[kind](make_run, store):
        for name in FIGURES[kind]:
            explained = quoted(labels[f"drawings.{name}"])
            with matplotlib.rc_context(style.RC):
                drawing = draw_figure(kind, name, source)
                if drawing is None:
                    continue
                for axes in drawing.figure.axes:  # which names the ticks, as drawing does
                    axes.get_xticklabels(), axes.get_yticklabels()
            drawn.add(name)
            written = texts(drawing.figure)
            assert written
            unexplained = {text for text in written if not any(code.fullmatch(text) for code in explained)}
            assert unexplained == set(), name
    assert drawn == set(FIGURES[kind])


def subject(store: RunStore, launcher: str, **summary: object) -> Subject:
    run = store.create("compare", "demo")
    facts = {"launcher": launcher, "world_size": 2, "steps": 40, "warmup_steps": 10, **summary}
    partial = Member("b", "b", {**facts, "partial": True, "steps": 7}, None)
    return Subject(run, {name: [Member("a", "a", facts, None), partial] for name in ("static", "partition")})


@pytest.mark.parametrize("language", OTHERS)
def test_explanations_are_in_the_language_and_count_what_was_drawn(store: RunStore, language: str) -> None:
    template = load_template(language)
    real = subject(store, "torchrun")
    virtual = subject(
        store, "virtual", comm_model="nothing is sent", comm_model_said={"say": "comm_model.none", "values": {}}
    )
    for name in (name for names in FIGURES.values() for name in names):
        for shown in (real, virtual):
            text = reading(template, name, shown)
            assert english_words(text, (*NAMES, "std", "Fit")) == [], name
            assert "{" not in text
            assert ("40" in text and "10" in text and " 7 " not in text) == (name in FIGURES["train"])
    assert "nothing is sent" not in reading(template, "timeline", virtual)
    assert reading(template, "timeline", virtual) != reading(template, "timeline", real)
    assert reading(template, "unheard_of", real) == ""


def test_reports_in_the_language_of_the_drawings_do_not_explain_them(store: RunStore) -> None:
    template = load_template(RECORDS_LANGUAGE)
    assert {reading(template, name, subject(store, "torchrun")) for name in FIGURES["train"]} == {""}
