"""What a report concludes of servers and rings follows what was measured, in both languages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from languages import english_words
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


PAIR = {"baseline": "ring", "candidate": "ps", "verdict": Verdict.SLOWER}
TOLD = PairRecord.model_construct(**dict.fromkeys(PairRecord.model_fields) | PAIR)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("block", "after"),
    [
        ("arms_order", {"ps": (6.0, 1.0)}),
        ("arms_order", {"ps": (20.0, 4.1)}),
        ("arms_order", {"pairs": [TOLD]}),
        ("agreement", {"losses": (1.0, 0.4)}),
    ],
    ids=["faster", "not by messages", "told apart", "another loss"],
)
def test_the_conclusion_turns_where_the_measures_do(
    tmp_path: Path, language: str, block: str, after: dict[str, Any]
) -> None:
    """Not only in its numbers: a server that is faster, one that messages do not explain, an arm of another loss."""
    says = f"{{{{ say.{block} }}}}"
    one, other = (
        substitute(load_template(language), says, communication_facts(subject(tmp_path, **given)))
        for given in ({}, after)
    )
    assert re.sub(r"[\d.,]", "", one) != re.sub(r"[\d.,]", "", other)
    assert language == "en" or english_words(other) == []
