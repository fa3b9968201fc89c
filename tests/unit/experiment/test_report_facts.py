"""What a report says of the arms: how they changed, what was predicted, and the time beyond the ideal."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from languages import facts

from dynbench.analysis.waste import PARTS
from dynbench.experiment.offline_plans import Solved, planned_speedup
from dynbench.experiment.report_conclusions import conclude
from dynbench.experiment.report_facts import TOPICS, Waterfall, changes, waterfall, without_ideal
from dynbench.experiment.report_input import ReportInput, find_report_input
from dynbench.experiment.reporting import render_report
from dynbench.report import LANGUAGES, load_template
from dynbench.runs.atomic import write_json
from dynbench.runs.phrase import Phrase
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MakeComparison = Callable[..., Run]

SIZES = {"world_size": 2, "global_batch": 64, "exact": "both"}


def metrics(spread: float, p95: float, memory: float) -> dict[str, object]:
    return {
        "std_over_ranks": {"padded_tokens": {"mean": spread}, "peak_mem_mb": {"mean": memory}},
        "padded_tokens_max": {"mean": 10 * spread},
        "step_time_ms": {"mean": p95 / 2, "p50": p95 / 2, "p95": p95, "total": 1.0},
        "peak_mem_mb": {"max": 100 * memory},
        "proxy": {
            "cost_type": "tokens",
            "padded_tokens": {"correlation": 0.9, "mape": 0.125},
            "cost": {"correlation": None, "mape": None},
        },
    }


def report(store: RunStore, language: str = "en") -> str:
    subject = find_report_input(store, None)
    text = render_report(subject, language, "md", subject.run.path)
    assert "{{" not in text
    assert "None" not in text
    assert "\n\n\n" not in text
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_better_worse_and_equal_arms_are_named_as_such(store: RunStore, make_comparison: MakeComparison) -> None:
    summaries = {
        "static": metrics(100.0, 200.0, 10.0),
        "better": metrics(50.0, 150.0, 20.0),
        "worse": metrics(125.0, 250.0, 5.0),
        "equal": metrics(100.0, 200.0, 10.0),
    }
    make_comparison(*({"candidate": name} for name in ("better", "worse", "equal")), summaries=summaries)

    found = {name: dict(topic.groups) for name, topic in facts(find_report_input(store, None))["topics"].items()}
    one = {"less": ["better"], "more": ["worse"], "same": ["equal"]}
    assert found["imbalance"] == found["tail"] == one
    assert found["memory"] == {"less": ["worse"], "more": ["better"], "same": ["equal"]}


@pytest.mark.parametrize("key", ["launch.slowdown", "schedule.speeds"])
def test_ranks_of_unequal_speed_are_to_have_equal_times_and_not_equal_tokens(
    store: RunStore, make_comparison: MakeComparison, key: str
) -> None:
    """A plan that gives a slow rank less was told to have the larger imbalance."""
    summaries = {"static": metrics(100.0, 200.0, 10.0), "other": metrics(300.0, 150.0, 10.0)}
    for (name, known), ms in zip(summaries.items(), (8.0, 2.0), strict=True):
        known["std_over_ranks"] = {
            "compute_ms": {"mean": ms},
            "padded_tokens": {"mean": 100.0 if name == "static" else 300.0},
        }
    value = {1: 2.0} if key == "launch.slowdown" else (1.0, 0.5)
    flags = {"static": {"launch.nproc": 2}, "other": {"schedule.mode": "dynamic", "launch.nproc": 2, key: value}}
    make_comparison({"candidate": "other"}, summaries=summaries, flags=flags)

    found = changes(find_report_input(store, None), "imbalance")
    assert (found.name, found.groups) == ("unequal", [("less", ["other"])])


@pytest.mark.parametrize("together", [True, False])
def test_memory_that_nobody_knows_is_said_once_and_why(
    store: RunStore, make_comparison: MakeComparison, together: bool
) -> None:
    known = metrics(100.0, 200.0, 10.0)
    known["peak_mem_mb"] = {"max": None}
    known["std_over_ranks"] = {"padded_tokens": {"mean": 100.0}, "peak_mem_mb": {"mean": None}}
    make_comparison({"candidate": "other"}, summaries={"static": known, "other": known})
    for run in store.list() if together else ():
        write_json(run.env_file, {"together": {"id": "first", "arms": ["static", "other"]}})

    topics = facts(find_report_input(store, None))["topics"]
    assert topics["memory"].known == ("shared" if together else "missing") and topics["tail"].known == "compared"


@pytest.mark.parametrize("name", ["imbalance", "tail", "memory"])
def test_a_change_is_that_of_the_paired_launches(store: RunStore, make_comparison: MakeComparison, name: str) -> None:
    """As the column of gains has it; the means may be over a launch more."""
    summaries = {"static": metrics(100.0, 200.0, 10.0), "other": metrics(50.0, 150.0, 5.0)}
    make_comparison({"candidate": "other", "improvement_percent": {TOPICS[name]: -30.0}}, summaries=summaries)

    assert changes(find_report_input(store, None), name).groups == [("more", ["other"])]


@pytest.mark.parametrize("batch", [64, 128])
def test_steps_of_another_batch_are_neither_better_nor_worse(
    store: RunStore, make_comparison: MakeComparison, batch: int
) -> None:
    summaries = {"static": metrics(100.0, 200.0, 10.0), "other": metrics(300.0, 500.0, 5.0) | {"global_batch": batch}}
    make_comparison({"candidate": "other", "improvement_percent": {}}, summaries=summaries)

    subject = find_report_input(store, None)
    assert changes(subject, "tail").groups == [("more" if batch == 64 else "unlike", ["other"])]
    assert changes(subject, "memory").groups == [("less", ["other"])], "memory is compared"


@pytest.mark.parametrize("language", LANGUAGES)
def test_figures_are_numbered_as_they_stand_and_referred_to(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    make_comparison({})

    text = report(store, language)

    word = {"en": "Figure", "zh": "图"}[language]
    assert re.findall(rf"^!\[{word} (\d)", text, re.MULTILINE) == ["1", "2"]
    assert re.search(rf"!\[{word} 1\S? ?.*\]\(figures/timeline.png\)", text)
    body = re.sub(r"!\[.*\n.*", "", text)
    assert f"{word} 1" in body  # the timeline is referred to
    assert load_template(language).labels["words.not_drawn"] in body  # as are those that were not drawn


def test_predicted_against_achieved_takes_probe_and_plans(store: RunStore, make_comparison: MakeComparison) -> None:
    probed = {"candidate": "probed", "speedup": 1.2, "predicted_speedup": 1.5, "bound_speedup": 2.25}
    folder = make_comparison(probed, {"candidate": "planned", "speedup": 1.5}, {"candidate": "neither"})
    sizes = {**SIZES, "cost_type": "tokens"}
    lines = [
        {"arm": "static", "policy": "static", "cost_per_token": 3.0, **sizes},
        {"arm": "planned", "policy": "prefix", "cost_per_token": 1.5, **sizes},
    ]
    write_json(folder.path / "solve.json", {"run": "s", "results": lines})

    found = facts(find_report_input(store, None))["predictions"]
    assert [each.by for each in found] == ["probe", "plan", None]
    assert [each.predicted for each in found] == [1.5, 2.0, None]
    assert [each.reached for each in found[:2]] == pytest.approx([0.8, 0.75])


def test_plans_predict_nothing_where_arms_have_other_samples_in_a_step(
    store: RunStore, make_comparison: MakeComparison
) -> None:
    """Warm-up is planned too, of samples of its own: a plan promised 2.133 where 1.488 was achieved."""
    levels = ("step", "window", "stream", "tokens")
    folder = make_comparison(*({"candidate": level, "level": level} for level in levels))
    lines = [
        {"arm": name, "policy": "static", "cost_type": "tokens", "cost_per_token": cost, **SIZES}
        for name, cost in (("static", 3.0), *((level, 1.5) for level in levels))
    ]
    write_json(folder.path / "solve.json", {"run": "s", "results": lines})

    found = facts(find_report_input(store, None))["predictions"]
    assert [each.predicted for each in found] == [2.0, 2.0, None, None]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {}, 2.5),
        ({}, {"micro_batches": 2}, 2.5),
        ({}, {"cost_type": "attention"}, 2.0),
        ({}, {"speeds": [1.0, 2.0]}, 2.0),
        ({}, {"cost_type": "attention", "micro_batches": 2}, None),
        ({"policy": "lpt"}, {}, 2.5),
        ({"policy": "lpt"}, {"cost_type": "attention"}, None),
        ({}, {"cost_type": "tokens_sq"}, None),
        ({"cost_type": "tokens_sq"}, {"cost_type": "tokens_sq"}, None),
    ],
)
def test_costs_in_another_unit_predict_no_time(
    before: dict[str, object], after: dict[str, object], expected: float | None
) -> None:
    common = {"cost_type": "tokens", "micro_batches": 1, "speeds": None}
    lines = [
        {"arm": "a", "policy": "static", "cost_per_token": 5.0, "speedup_vs_static": 1.0, **common, **before},
        {"arm": "b", "policy": "prefix", "cost_per_token": 2.0, "speedup_vs_static": 2.0, **common, **after},
    ]
    assert planned_speedup(Solved("s", lines), "a", "b") == expected
    assert planned_speedup(Solved("s", lines[:1]), "a", "b") is None
    assert planned_speedup(None, "a", "b") is None


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (2.0, 1.0, "less"),
        (2.0, 3.0, "more"),
        (2.0, 2.0, "same"),
        (2.0, 2.0001, "same"),
        (0.0, 0.0, "same"),
        (0.0, 1.0, "more"),
        (None, 1.0, "unknown"),
        (1.0, None, "unknown"),
    ],
)
def test_a_change_has_a_word(
    store: RunStore, make_comparison: MakeComparison, before: float | None, after: float | None, expected: str
) -> None:
    known = {"static": {"peak_mem_mb": {"max": before}}, "other": {"peak_mem_mb": {"max": after}}}
    make_comparison({"candidate": "other", "improvement_percent": {}}, summaries=known)
    assert changes(find_report_input(store, None), "peak").groups == [(expected, ["other"])]


KNOWN = {
    "waste": {
        "s": 2.0,
        **dict.fromkeys(PARTS, 0.05),
        "compute": 0.0,
        "waiting": 0.25,
        "reason": None,
        "reason_said": None,
    },
    "step_time_ms": {"total": 400.0},
    "real_tokens": 2000,
    "slowest_ranks": {"distinct": 2, "shares": [0.75, 0.25], "equal": 0.5},
}
WHY = Phrase.of("waste.no_fit")
UNKNOWN = {"waste": {**dict.fromkeys(("s", *PARTS)), "reason": str(WHY), "reason_said": WHY.record()}}


def found(store: RunStore, candidate: dict[str, object] | None = None) -> ReportInput:
    subject = find_report_input(store, None)
    if candidate is not None:
        for member in subject.arms["partition"]:
            member.summary.update(candidate)  # type: ignore[attr-defined]  # a dict behind the mapping
    return subject


def fallen(subject: ReportInput) -> Waterfall | None:
    return waterfall(subject, conclude(subject).best)


BETTER = {"s": 1.6, **dict.fromkeys(PARTS, 0.05), "compute": 0.0, "waiting": 0.125}, 320.0
WORSE = {"s": 3.0, **dict.fromkeys(PARTS, 0.05), "compute": 0.0, "waiting": 0.1, "exposed_comm": 22 / 60}, 600.0
"""Waste of a candidate and its time, ms; the worse one waits for 10 ms less, and exposes more communication."""


@pytest.mark.parametrize(
    ("verdict", "candidate", "told"),
    [
        ("FASTER", BETTER, (True, "waiting", 200, 160, 30, 60)),
        ("SLOWER", WORSE, (False, "exposed_comm", 200, 300, 100, 200)),
        ("AMBIGUOUS", BETTER, None),
        ("AMBIGUOUS", WORSE, None),
        ("SAME", BETTER, None),
        ("SLOWER", BETTER, None),
    ],
)
def test_what_the_best_candidate_gave_back_or_took_is_told_where_verdict_and_parts_agree(
    store: RunStore,
    make_comparison: MakeComparison,
    verdict: str,
    candidate: tuple[dict[str, float], float],
    told: tuple[object, ...] | None,
) -> None:
    make_comparison({"candidate": "partition", "verdict": verdict}, summary=KNOWN)
    waste, total = candidate
    fall = fallen(found(store, {"waste": waste, "step_time_ms": {"total": total}}))
    if told is None or fall is None:
        assert fall is told
        return
    assert (fall.faster, fall.part) == told[:2]
    assert (fall.before, fall.after, fall.change, fall.left) == pytest.approx(told[2:])


def test_where_no_ideal_can_be_stated_the_reason_is_given(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({"candidate": "partition"}, summary=UNKNOWN)
    subject = find_report_input(store, None)
    assert fallen(subject) is None
    assert without_ideal(subject, load_template("en")) == {str(WHY): ["static", "partition"]}
