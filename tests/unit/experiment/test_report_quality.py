"""Which compressors keep the baseline's quality is told from paired launches, and which do not, in both languages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from compared import compared
from languages import english_words, numbers

from dynbench.experiment.report_conclusions import Compressors, compressors
from dynbench.experiment.report_input import Member, ReportInput
from dynbench.experiment.report_quality import qualities
from dynbench.experiment.report_tables import Sources, report_tables
from dynbench.report import LANGUAGES, Template, load_template, substitute
from dynbench.runs.run import Run

SEEDS = range(4)
APART = (0.02, -0.01, 0.005, -0.015)
"""Of a perplexity, seed by seed: more than what is allowed, and the same under every arm."""
NOISE = (0.002, -0.002, 0.001, -0.001)
ARMS = {
    "none": (1.0, 0.0, 0.0),
    "fp8": (3.9, 0.0, 1.0),
    "qsgd": (7.5, 0.004, 1.0),
    "topk": (48.0, 1.5, 1.0),
    "int8": (3.9, 0.01, 1.0),
}
"""By arm: compression, by which part its perplexity is higher, and how far seeds differ in that."""


def quality_table(found: ReportInput, template: Template) -> str:
    return report_tables(Sources(found, None, template, found.run.path))["table.quality"]


def members(name: str, seeds: Sequence[int] = SEEDS, evaluated: bool = True) -> list[Member]:
    times, worse, spread = ARMS[name]
    found = []
    for seed in seeds:
        perplexity = 9.0 * (1 + APART[seed]) * (1 + worse + spread * NOISE[seed])
        told = {"loss": math.log(perplexity), "perplexity": perplexity} if evaluated else None
        summary = {"compression_ratio": times, "eval": told}
        found.append(Member(f"{name}{seed}", "", summary, None, {"train.seed": seed}))
    return found


def subject(folder: Path, seeds: Sequence[int] = SEEDS, **instead: Sequence[Member]) -> ReportInput:
    arms = {name: instead.get(name, members(name, seeds)) for name in ARMS}
    different = {"compress.name": ("none", "other")}
    items = [compared(baseline="none", candidate=name, compared=different) for name in ARMS if name != "none"]
    return ReportInput(Run(folder), arms, comparisons=items)


def judged(given: ReportInput) -> Compressors:
    return compressors(given, load_template("en").label)


def said(given: ReportInput, language: str = "en") -> str:
    values = {"compressors": judged(given), "baseline.name": "`none`"}
    return substitute(load_template(language), "{{ say.quality }}", values)


def test_arms_are_judged_by_the_upper_end_of_their_interval(tmp_path: Path) -> None:
    _, found = qualities(subject(tmp_path))
    judged = {name: arm.judgement for name, arm in found.items()}
    assert judged == {"none": None, "fp8": "within", "qsgd": "within", "topk": "beyond", "int8": "open"}
    assert found["topk"].change is not None and found["topk"].change[0] == pytest.approx(1.5, abs=1e-3)


def test_launches_are_paired_by_seed_whatever_their_order(tmp_path: Path) -> None:
    """Unpaired, seeds would differ by more than what is allowed."""
    shuffled, ordered = judged(subject(tmp_path, fp8=members("fp8")[::-1])), judged(subject(tmp_path))
    assert (shuffled.within, shuffled.beyond, shuffled.open) == (ordered.within, ordered.beyond, ordered.open)


def test_it_is_known_who_is_near_and_who_sends_least(tmp_path: Path) -> None:
    found = judged(subject(tmp_path))
    assert found.chosen is not None and found.quality is not None and found.measure == "perplexity"
    assert (found.within, found.beyond, found.open) == (["fp8", "qsgd"], ["topk"], ["int8"])
    assert found.chosen.candidate == "qsgd" and found.quality.compression == 7.5


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_has_every_arm_with_its_interval(tmp_path: Path, language: str) -> None:
    template = load_template(language)
    text = quality_table(subject(tmp_path), template)
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert [row.split("|")[1].strip() for row in rows] == list(ARMS)
    assert "+150.00" in rows[3] and template.label("quality.beyond") in rows[3]
    assert template.label("quality.open") in rows[4]


def test_both_languages_say_the_same_numbers(tmp_path: Path) -> None:
    texts = {language: said(subject(tmp_path), language) for language in LANGUAGES}
    assert numbers(texts["en"]) == numbers(texts["zh"])
    assert english_words(texts["zh"]) == []


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    for given in (subject(tmp_path, seeds=[0]), subject(tmp_path, topk=members("topk", evaluated=False))):
        found = judged(given)
        assert not found.within and not found.beyond and not found.open and found.chosen is None
    assert quality_table(subject(tmp_path, topk=members("topk", evaluated=False)), load_template("en")) == ""


def test_what_never_compressed_is_judged_no_more_than_the_baseline(tmp_path: Path) -> None:
    """It kept the baseline's quality, as it sent the baseline's gradients: the last step comes before its first."""
    late = [
        Member(one.id, "", {**one.summary, "steps": 12, "warmup_steps": 8}, None, {**(one.config or {}), **LATE})
        for one in members("fp8")
    ]
    given = subject(tmp_path, fp8=late)
    _, found = qualities(given)
    assert found["fp8"].judgement is None and found["qsgd"].judgement == "within"
    template = load_template("en")
    row = next(line for line in quality_table(given, template).splitlines() if "fp8" in line)
    assert template.label("quality.never") in row


LATE = {"compress.start_step": 20}
