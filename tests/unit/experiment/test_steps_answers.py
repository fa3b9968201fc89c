"""Which of two things costs loss is said from the launches, or that they do not tell, in both languages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from languages import english_words

from dynbench.experiment.answers import Speaker
from dynbench.experiment.steps_answers import steps_sentence, steps_table
from dynbench.experiment.subject import Member, Subject
from dynbench.report import LANGUAGES, load_template
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


def said(members: dict[str, Sequence[Member]], tmp_path, language: str = "en") -> str:
    subject = Subject(Run(tmp_path), members)
    return " ".join(steps_sentence(Speaker(subject, load_template(language), {})).split())


@pytest.mark.parametrize(
    ("fewer", "rows", "ending"),
    [
        (0.05, 0.0, "what costs loss is the fewer steps, not the packing."),
        (0.0, 0.05, "what costs loss is the packing, not the fewer steps."),
        (-0.05, 0.0, "neither costs loss here."),
        (0.001, 0.0, "these launches do not tell which of the two costs loss."),
    ],
)
def test_the_sentence_says_which(fewer: float, rows: float, ending: str, tmp_path) -> None:
    text = said(arms(fewer, rows), tmp_path)
    assert text.endswith(ending)
    assert "8,192" in text and "4 seeds" in text and "4 times fewer" in text and f"by {fewer:+.4f}" in text


@pytest.mark.parametrize("language", LANGUAGES)
def test_seeds_that_differ_as_much_as_the_effect_do_not_tell(language: str, tmp_path) -> None:
    clear, open_ = (said(arms(0.02, 0.0, spread), tmp_path, language) for spread in (1.0, 30.0))
    assert clear.split("，" if language == "zh" else ":")[-1] != open_.split("，" if language == "zh" else ":")[-1]
    if language == "zh":
        assert english_words(clear) == english_words(open_) == []


def test_what_cannot_be_told_is_said(tmp_path) -> None:
    assert "did not train on as many samples" in said(arms(0.1, 0.0, few_steps=65), tmp_path)
    without = {name: found for name, found in arms(0.1, 0.0).items() if "packed" not in name}
    assert "is not known" in said(without, tmp_path)
    unevaluated = {**arms(0.1, 0.0), "few": [member("padded", 128, 64, None, seed) for seed in SEEDS]}
    assert "is not known" in said(unevaluated, tmp_path)
    single = {name: found[:1] for name, found in arms(0.1, 0.0).items()}
    assert "is not known" in said(single, tmp_path)


def test_losses_are_paired_by_seed_whatever_their_order(tmp_path) -> None:
    ordered, shuffled = arms(0.05, 0.0), arms(0.05, 0.0)
    shuffled["few"] = shuffled["few"][::-1]
    assert said(shuffled, tmp_path) == said(ordered, tmp_path)


def test_the_table_has_every_arm_with_its_spread(tmp_path) -> None:
    text = steps_table(Subject(Run(tmp_path), arms(0.05, 0.0)), load_template("en"))
    assert [name in text for name in NAMES] == [True] * 4 and "| 0.6500 | 0.1291 |" in text.replace("  ", " ")
