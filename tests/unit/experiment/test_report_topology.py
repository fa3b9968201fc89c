"""What a report concludes of servers and rings follows what was measured, in both languages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from languages import english_words, numbers
from unit.analysis.test_topology import epochs, summary

from dynbench.analysis.questions import question_named
from dynbench.analysis.record import PairRecord
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.report_facts import communication_facts
from dynbench.experiment.report_input import Member, ReportInput
from dynbench.report import LANGUAGES, load_template, substitute
from dynbench.runs.run import Run

SIZES = {"ddp": (4, 0), "ring": (4, 0), "ps": (4, 1), "ps_3": (3, 1)}
RING = (10.0, 4.0)
"""Milliseconds of a step, and of transfers in it."""


def subject(
    folder: Path, ps: tuple[float, float] = (20.0, 12.0), losses: tuple[float, float] = (1.0, 0.5), **more: Any
) -> ReportInput:
    """Four arms of one launch; those of the server as given."""
    arms = {}
    for name, size in SIZES.items():
        trained = {"each": epochs(*(losses if name == "ps" else (1.0, 0.5)))}
        found = summary(*size, *(ps if size[1] else RING), epochs=trained)
        arms[name] = [Member(name, name, found, None, {"train.seed": 0})]
    return ReportInput(Run(folder), arms, question=question_named("topology"), **more)


def said(source: ReportInput, block: str, language: str) -> str:
    return substitute(load_template(language), f"{{{{ say.{block} }}}}", communication_facts(source))


@pytest.mark.parametrize("block", ["arms_order", "servers_right", "agreement"])
def test_both_languages_say_the_same_numbers(tmp_path: Path, block: str) -> None:
    found = subject(tmp_path, losses=(1.0, 0.4))
    english, chinese = (said(found, block, language) for language in LANGUAGES)
    assert numbers(english) == numbers(chinese) and numbers(english)
    assert english_words(chinese) == []


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("block", "before", "after"),
    [
        ("arms_order", {}, {"ps": (6.0, 1.0)}),
        ("arms_order", {}, {"ps": (20.0, 4.1)}),
        ("agreement", {}, {"losses": (1.0, 0.4)}),
    ],
)
def test_the_conclusion_turns_where_the_measures_do(
    tmp_path: Path, language: str, block: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Not only in its numbers: a server that is faster, one that messages do not explain, an arm of another loss."""
    texts = [said(subject(tmp_path, **each), block, language) for each in (before, after)]
    one, other = ("".join(filter(lambda sign: not (sign.isdigit() or sign in ".,"), text)) for text in texts)
    assert one != other


@pytest.mark.parametrize("language", LANGUAGES)
def test_whether_launches_tell_two_arms_apart_is_said(tmp_path: Path, language: str) -> None:
    fields = dict.fromkeys(PairRecord.model_fields)
    told = PairRecord.model_construct(**fields | {"baseline": "ring", "candidate": "ps", "verdict": Verdict.SLOWER})
    assert said(subject(tmp_path, pairs=[told]), "arms_order", language) != said(
        subject(tmp_path), "arms_order", language
    )
