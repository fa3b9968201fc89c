"""Which arms keep the baseline's quality, and what fewer steps or rows without padding cost, by paired launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from compared import compared

from dynbench.experiment.report_conclusions import Compressors, Effect, Effects, compressors, qualities, steps_effects
from dynbench.experiment.report_input import Member, ReportInput
from dynbench.report import load_template
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


def members(name: str, seeds: Sequence[int] = SEEDS, evaluated: bool = True) -> list[Member]:
    times, worse, spread = ARMS[name]
    found = []
    for seed in seeds:
        perplexity = 9.0 * (1 + APART[seed]) * (1 + worse + spread * NOISE[seed])
        told = {"loss": math.log(perplexity), "perplexity": perplexity} if evaluated else None
        summary = {"compression_ratio": times, "traffic_compression_ratio": times, "eval": told}
        found.append(Member(f"{name}{seed}", "", summary, None, {"train.seed": seed}))
    return found


def subject(folder: Path, seeds: Sequence[int] = SEEDS, **instead: Sequence[Member]) -> ReportInput:
    arms = {name: instead.get(name, members(name, seeds)) for name in ARMS}
    different = {"compress.name": ("none", "other")}
    items = [compared(baseline="none", candidate=name, compared=different) for name in ARMS if name != "none"]
    return ReportInput(Run(folder), arms, comparisons=items)


def judged(given: ReportInput) -> Compressors:
    return compressors(given, load_template("en").label)


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
def test_arms_are_judged_by_the_upper_end_of_their_interval_and_of_those_within_the_one_that_sends_least_is_chosen(
    tmp_path: Path, order: int
) -> None:
    """Launches are paired by seed, whatever their order: unpaired, seeds differ by more than what is allowed."""
    given = subject(tmp_path, fp8=members("fp8")[::order])
    _, found = qualities(given)
    judgements = {name: arm.judgement for name, arm in found.items()}
    assert judgements == {"none": None, "fp8": "within", "qsgd": "within", "topk": "beyond", "int8": "open"}
    assert found["topk"].change is not None and found["topk"].change[0] == pytest.approx(1.5, abs=1e-3)
    told = judged(given)
    assert (told.within, told.beyond, told.open) == (["fp8", "qsgd"], ["topk"], ["int8"])
    assert told.chosen is not None and told.quality is not None and told.measure == "perplexity"
    assert told.chosen.candidate == "qsgd" and told.quality.compression == 7.5


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    for given in (subject(tmp_path, seeds=[0]), subject(tmp_path, topk=members("topk", evaluated=False))):
        found = judged(given)
        assert not found.within and not found.beyond and not found.open and found.chosen is None


def test_what_never_compressed_is_judged_no_more_than_the_baseline(tmp_path: Path) -> None:
    """It kept the baseline's quality, as it sent the baseline's gradients: the last step comes before its first."""
    steps, late = {"steps": 12, "warmup_steps": 8}, {"compress.start_step": 20}
    arm = [Member(one.id, "", {**one.summary, **steps}, None, {**(one.config or {}), **late}) for one in members("fp8")]
    _, found = qualities(subject(tmp_path, fp8=arm))
    assert found["fp8"].judgement is None and found["qsgd"].judgement == "within"


LOSS_NOISE = (0.001, -0.002, 0.0015, -0.0005)
"""Of a loss, seed by seed."""
NAMES = ("many", "many_packed", "few", "few_packed")


def trained_member(layout: str, batch: int, steps: int, loss: float | None, seed: int) -> Member:
    summary = {"layout": layout, "global_batch": batch, "steps": steps, "warmup_steps": 0, "eval": {"loss": loss}}
    return Member(f"{layout}{batch}{seed}", "", summary, None, {"train.seed": seed})


def arms(fewer: float, rows: float, spread: float = 1.0, few_steps: int = 64) -> dict[str, Sequence[Member]]:
    """Fewer steps add `fewer` to the loss, rows without padding `rows`; `spread` is how far seeds differ in that."""
    found: dict[str, Sequence[Member]] = {}
    for name in NAMES:
        few, packed = name.startswith("few"), name.endswith("packed")
        losses = [0.5 + seed * 0.1 + few * (fewer + spread * LOSS_NOISE[seed]) + packed * rows for seed in SEEDS]
        batch, steps = (128, few_steps) if few else (32, 256)
        layout = "packed" if packed else "padded"
        found[name] = [trained_member(layout, batch, steps, losses[seed], seed) for seed in SEEDS]
    return found


def told(members: dict[str, Sequence[Member]], folder: Path) -> Effects | str:
    return steps_effects(ReportInput(Run(folder), members))


@pytest.mark.parametrize(
    ("fewer", "rows", "spread", "expected"),
    [
        (0.05, 0.0, 0.1, ["costs", "none"]),
        (0.0, 0.05, 0.1, ["none", "costs"]),
        (-0.05, 0.0, 0.1, ["gains", "none"]),
        (0.0, 0.05, 30.0, ["open", "costs"]),
    ],
)
def test_each_effect_is_judged_by_its_own_interval(
    fewer: float, rows: float, spread: float, expected: list[str], tmp_path: Path
) -> None:
    """Of a loss of 0.65, up to 0.00065 counts as none; launches are paired by seed, whatever their order."""
    made = arms(fewer, rows, spread)
    found = told({**made, "few": made["few"][::-1]}, tmp_path)
    assert isinstance(found, Effects)
    assert [effect.judgement for effect in (found.fewer, found.rows)] == expected
    assert (found.fewer.mean, found.rows.mean) == pytest.approx((fewer, rows), abs=1e-9)


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


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    assert told(arms(0.1, 0.0, few_steps=65), tmp_path) == "unequal"
    without = {name: found for name, found in arms(0.1, 0.0).items() if "packed" not in name}
    assert told(without, tmp_path) == "unknown"
    unevaluated = {**arms(0.1, 0.0), "few": [trained_member("padded", 128, 64, None, seed) for seed in SEEDS]}
    assert told(unevaluated, tmp_path) == "unknown"
    single = {name: found[:1] for name, found in arms(0.1, 0.0).items()}
    assert told(single, tmp_path) == "unknown"
