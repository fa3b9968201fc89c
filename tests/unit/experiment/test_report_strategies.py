"""Chapters on strategies and on bucket sizes: only where arms are such, in both languages, with the arms' numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dynbench.experiment.report_communication import PAIRS, buckets_of
from dynbench.experiment.report_input import find_report_input
from dynbench.experiment.reporting import render_report
from dynbench.report import LANGUAGES, load_template
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MakeComparison = Callable[..., Run]
SIZES = ("none", "25", "1")


def summary(calls: float, step_ms: float, exposed_ms: float, **more: object) -> dict[str, object]:
    return {
        "collectives": {"mean": calls},
        "bytes_raw": {"mean": 98e6},
        "bytes_wire": {"mean": 98e6},
        "step_time_ms": {"mean": step_ms},
        "exposed_comm_ms": {"mean": exposed_ms},
        "time_ms": {"compute": 150.0},
        "comm_transfer_ms": {"mean": 145.0},
        "workers": 2,
        **more,
    }


def report(store: RunStore, language: str) -> str:
    subject = find_report_input(store, None)
    text = render_report(subject, language, "md", subject.run.path)
    assert "{{" not in text and "None" not in text
    return text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("language", LANGUAGES)
def test_bucket_sizes_are_told_with_the_model_and_what_it_rests_on(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    arms = ("static", "mb25", "mb1")  # the first is the baseline of made-up comparisons
    flags = {arm: {"sync.name": "bucketed", "sync.bucket_mb": size} for arm, size in zip(arms, SIZES, strict=True)}
    found = ((2, 300.0, 98.5), (6, 250.0, 22.1), (50, 270.0, 26.5))  # o = 0.5 ms, w = 1 GB/s
    summaries = {arm: summary(*numbers) for arm, numbers in zip(arms, found, strict=True)}
    make_comparison(*({"candidate": arm} for arm in arms[1:]), summaries=summaries, flags=flags, question="sync")
    text, labels = report(store, language), load_template(language, name="arms").labels
    assert f"### {labels['chapters.buckets.title']}" in text
    assert labels["chapters.strategies.title"] not in text
    assert labels["words.bucket_one"] in text and "`mb25`" in text
    found = buckets_of(find_report_input(store, None))
    assert found is not None and found.fit.best_bytes is not None
    model = (found.fit.total, found.fit.call_ms, found.fit.best_bytes)
    assert model == pytest.approx((98e6, 0.5, (98e6 * 0.5 * 1e6) ** 0.5))
    assert (found.least.compute_ms, found.least.transfer_ms) == (150, 145), "whether computing is as long as sending"


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_pair_of_strategies_has_its_paragraph(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    names = {"static": "ddp"} | {name: name for pair in PAIRS.values() for name in pair if name != "ddp"}
    flags = {arm: {"sync.name": name} for arm, name in names.items()}
    held = {"after_step": {"optimizer_mb": 22.5, "gradients_mb": 11.25, "parameters_mb": 11.25, "strategy_mb": 0.0}}
    summaries = {arm: summary(41, 100.0 + place, 20.0, memory_parts=held) for place, arm in enumerate(names)}
    make_comparison(
        *({"candidate": arm} for arm in names if arm != "static"), summaries=summaries, flags=flags, question="sync"
    )
    text, labels = report(store, language), load_template(language, name="arms").labels
    chapter = text.partition(f"### {labels['chapters.strategies.title']}\n")[2].partition("\n#")[0]
    assert chapter.count("**") == 2 * len(PAIRS)
    assert "22.5" in chapter and "`zero1`" in chapter
    assert labels["chapters.buckets.title"] not in text


def test_other_comparisons_have_neither(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({"candidate": "arm"}, question="sync")
    labels = load_template("en", name="arms").labels
    text = report(store, "en")
    assert [name for name in ("buckets", "strategies") if labels[f"chapters.{name}.title"] in text] == []
