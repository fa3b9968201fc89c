"""Which of two things costs loss is said from the launches, or that they do not tell, in both languages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from languages import english_words

from dynbench.experiment.report_input import Member, ReportInput
from dynbench.experiment.report_quality import Effect, Effects, steps_effects
from dynbench.experiment.report_tables import Sources, report_tables
from dynbench.report import LANGUAGES, load_template, substitute
from dynbench.runs.run import Run

SEEDS = range(4)
NOISE = (0.001, -0.002, 0.0015, -0.0005)
"""Of a loss, seed by seed."""
NAMES = ("many", "many_packed", "few", "few_packed")


def member(layout: str, batch: int, steps: int, loss: float | None, seed: int) -> Member:
    summary = {"layout": layout, "global_batch": batch, "steps": steps, "warmup_steps": 0, "eval": {"loss": loss}}
    return Member(f"{layout}{batch}{seed}", "", summary, None, {"train.seed": seed})


def arms(fewer: float, rows: float, spread: float = 1.0, few_steps: int = 64) -> dict[str, Sequence[Member]]:
    """Fewer steps add `fewer` to the loss, rows without padding `rows`; `spread` is how far seeds differ in that."""
    found: dict[str, Sequence[Member]] = {}
    for name in NAMES:
        few, packed = name.startswith("few"), name.endswith("packed")
        losses = [0.5 + seed * 0.1 + few * (fewer + spread * NOISE[seed]) + packed * rows for seed in SEEDS]
        batch, steps = (128, few_steps) if few else (32, 256)
        layout = "packed" if packed else "padded"
        found[name] = [member(layout, batch, steps, losses[seed], seed) for seed in SEEDS]
    return found


def told(members: dict[str, Sequence[Member]], tmp_path) -> Effects | str:
    return steps_effects(ReportInput(Run(tmp_path), members))


def said(members: dict[str, Sequence[Member]], tmp_path, language: str = "en") -> str:
    values = {"steps_effects": told(members, tmp_path), "baseline.name": "`many`"}
    return substitute(load_template(language), "{{ say.steps }}", values)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("fewer", "rows", "spread", "expected"),
    [
        (0.05, 0.0, 0.1, ["costs", "none"]),
        (0.0, 0.05, 0.1, ["none", "costs"]),
        (0.30, 0.05, 0.1, ["costs", "costs"]),
        (0.0, 0.0, 0.1, ["none", "none"]),
        (-0.05, 0.0, 0.1, ["gains", "none"]),
        (0.0, 0.0, 3.0, ["open", "none"]),
        (0.0, 0.05, 30.0, ["open", "costs"]),
        (0.003, 0.0, 1.0, ["least", "none"]),
    ],
    ids=["fewer", "rows", "both", "neither", "better", "open", "open beside a cost", "a little"],
)
def test_each_effect_is_judged_by_its_own_interval(
    fewer: float, rows: float, spread: float, expected: list[str], language: str, tmp_path: Path
) -> None:
    """Of a loss of 0.65, up to 0.00065 counts as none."""
    text = said(arms(fewer, rows, spread), tmp_path, language)
    found = told(arms(fewer, rows, spread), tmp_path)
    assert isinstance(found, Effects)
    assert [effect.judgement for effect in (found.fewer, found.rows)] == expected
    assert all(number in text for number in (f"{fewer:+.4f}", f"{rows:+.4f}", "0.0007"))
    if language != "en":
        assert english_words(text) == []


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.047, 0.053, "costs"),
        (0.0005, 0.003, "least"),
        (-0.001, 0.001, "none"),
        (0.0, 0.0, "none"),
        (0.0002, 0.0008, "none"),
        (-0.002, 0.0005, "open"),
        (-0.004, -0.002, "gains"),
        (-0.01, 0.08, "open"),
    ],
)
def test_an_interval_is_held_against_zero_and_a_margin(low: float, high: float, expected: str) -> None:
    assert Effect((low + high) / 2, low, high, 0.001).judgement == expected


def test_what_cannot_be_told_is_said(tmp_path) -> None:
    assert told(arms(0.1, 0.0, few_steps=65), tmp_path) == "unequal"
    without = {name: found for name, found in arms(0.1, 0.0).items() if "packed" not in name}
    assert told(without, tmp_path) == "unknown"
    unevaluated = {**arms(0.1, 0.0), "few": [member("padded", 128, 64, None, seed) for seed in SEEDS]}
    assert told(unevaluated, tmp_path) == "unknown"
    single = {name: found[:1] for name, found in arms(0.1, 0.0).items()}
    assert told(single, tmp_path) == "unknown"


def test_losses_are_paired_by_seed_whatever_their_order(tmp_path) -> None:
    ordered, shuffled = arms(0.05, 0.0), arms(0.05, 0.0)
    shuffled["few"] = shuffled["few"][::-1]
    assert told(shuffled, tmp_path) == told(ordered, tmp_path)


def test_the_table_has_every_arm_with_its_spread(tmp_path) -> None:
    sources = Sources(ReportInput(Run(tmp_path), arms(0.05, 0.0)), None, load_template("en"), tmp_path)
    text = report_tables(sources)["table.steps"]
    assert [name in text for name in NAMES] == [True] * 4 and "| 0.6500 | 0.1291 |" in text.replace("  ", " ")
