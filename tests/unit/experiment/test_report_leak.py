"""A report recommends no arm whose samples see each other, and says what rows without padding were priced by."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dynbench.experiment.report_conclusions import conclude
from dynbench.experiment.report_input import ReportInput, find_report_input
from dynbench.experiment.report_settings import cost_of
from dynbench.experiment.reporting import render_report
from dynbench.report import LANGUAGES
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MakeComparison = Callable[..., Run]
LEAK = "in flattened samples see each other (gradient 2e-02)"
LEAKING = {"candidate": "flattened", "speedup": 3.0, "ci95": [2.9, 3.1], "level": "tokens", "leak": LEAK}
TEXTS = {
    "en": ("Do not change to `flattened` for its speed", "which is another training"),
    "zh": ("不要为了速度改用 `flattened`", "所做的是另一种训练"),
}


def read(store: RunStore, language: str) -> tuple[ReportInput, str]:
    subject = find_report_input(store, None)
    text = render_report(subject, language, "md", subject.run.path)  # type: ignore[arg-type]  # a language
    return subject, " ".join(text.split())


@pytest.mark.parametrize("language", LANGUAGES)
def test_speed_alone_recommends_nothing(store: RunStore, make_comparison: MakeComparison, language: str) -> None:
    make_comparison({**LEAKING, "loss_max_rel_diff": None})
    _, text = read(store, language)
    assert [said in text for said in TEXTS[language]] == [True, True]


@pytest.mark.parametrize("language", LANGUAGES)
def test_another_arm_that_is_faster_is_the_best(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    make_comparison(LEAKING, {"candidate": "packed", "speedup": 2.0, "ci95": [1.9, 2.1]})
    subject, text = read(store, language)
    assert (best := conclude(subject).best) is not None and best.candidate == "packed"
    assert [said in text for said in TEXTS[language]] == [False, False]
    make_comparison(LEAKING, {"candidate": "slow", "verdict": "SLOWER", "speedup": 0.5, "ci95": [0.4, 0.6]})
    assert (best := conclude(find_report_input(store, None)).best) is not None and best.candidate == "flattened"


def test_what_rows_were_planned_with_is_told_of_each_arm(store: RunStore, make_comparison: MakeComparison) -> None:
    measured = {"schedule.cost_type": "measured", "schedule.cost_coefficients": "[2.0, 0.5, 0.01]"}
    flags = {
        "packed": {"workload.layout": "packed", **measured},
        "flattened": {"workload.layout": "flattened", "schedule.cost_type": "attention"},
        "padded": measured,
    }
    make_comparison(*({"candidate": name} for name in flags), flags=flags)
    subject = find_report_input(store, None)
    assert {name: cost_of(subject.arms[name][0], subject) for name in flags} == {
        "packed": "`measured`: *2 + 0.5·Σ_i l_i + 0.01·Σ_i l_i^2* ms",
        "flattened": "`attention`: *Σ_i l_i + 0.001·Σ_i l_i^2*",
        "padded": "`measured`: *2 + 0.5·n·L + 0.01·n·L^2* ms",
    }
