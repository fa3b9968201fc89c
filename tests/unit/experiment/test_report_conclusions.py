"""A conclusion says no more than the verdict, the level and the warnings allow, in both languages."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from languages import facts, said

from dynbench.analysis.checks.evidence import Seen, worded
from dynbench.experiment.report_conclusions import conclude, doubts_of, training_of
from dynbench.experiment.report_input import ReportInput, find_report_input
from dynbench.experiment.report_tables import Sources, report_tables
from dynbench.experiment.report_texts import saved_hours
from dynbench.experiment.reporting import render_report
from dynbench.report import LANGUAGES, load_template, templates_dir
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

MakeComparison = Callable[..., Run]
LOCAL = {"candidate": "local", "level": "tokens", "speedup": 1.353, "ci95": [1.3, 1.4]}
BY_HAND = {"candidate": "by_hand", "speedup": 1.1, "ci95": [1.05, 1.15]}
INT8 = {"candidate": "int8", "speedup": 1.2, "compared": {"compress.name": ["none", "int8"]}}


def chapter(store: RunStore, language: str, title: dict[str, str]) -> str:
    subject = find_report_input(store, None)
    text = render_report(subject, language, "md", subject.run.path)  # type: ignore[arg-type]  # a language
    found = text.partition(f"## {title[language]}\n")[2].partition("\n## ")[0]
    return " ".join(found.replace("\N{NO-BREAK SPACE}", " ").split())


def abstract(store: RunStore, language: str) -> str:
    return chapter(store, language, {"en": "Abstract", "zh": "摘要"})


def conclusion(store: RunStore, language: str) -> str:
    return chapter(store, language, {"en": "6. Conclusion", "zh": "6. 结论"})


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("strategy", "training"),
    [("local_sgd", "apart"), ("diloco", "apart"), ("ddp_noop", "untrained"), ("bucketed", "batch")],
)
def test_another_training_is_never_recommended_for_its_speed(
    store: RunStore, make_comparison: MakeComparison, strategy: str, training: str, language: str
) -> None:
    flags = {"local": {"sync.name": strategy}}
    make_comparison(LOCAL, {**BY_HAND, "verdict": "SAME"}, flags=flags, question="sync")
    subject = find_report_input(store, None)
    assert training_of(subject, subject.comparisons[0]).training == training
    text = conclusion(store, language)
    assert conclude(subject).advice == "other" and "`local`" in text
    assert "`by_hand`" in text and "GPU" not in text and "261" not in text

    make_comparison(LOCAL, BY_HAND, flags=flags, question="sync")
    subject = find_report_input(store, None)
    found = conclude(subject)
    assert found.best is not None and found.best.candidate == "by_hand"
    assert found.other is not None and found.other[0].candidate == "local" and found.other[1].training == training
    text = conclusion(store, language)
    assert found.advice == "FASTER" and "`by_hand`" in text.split("**")[1] and " 91 " in text, "of 1,000 GPU-hours"
    assert "1.353" in text


def evaluated(losses: tuple[float, float]) -> list[dict[str, object]]:
    return [{"eval": {"loss": loss}} for loss in losses]


@pytest.mark.parametrize(
    ("loss", "drift", "training"),
    [(0.9, 0.0, "same"), (1.2, 0.0, "worse"), (None, 0.2, "drift"), (None, 0.01, "unproven")],
)
def test_what_is_lossy_is_the_same_training_only_where_evaluations_show_it(
    store: RunStore, make_comparison: MakeComparison, loss: float | None, drift: float, training: str
) -> None:
    """Of two seeds alike, so that the interval is a point."""
    summaries = {"static": {"eval": {"loss": 1.0}}, "int8": {"eval": {"loss": loss}}}
    make_comparison({**INT8, "loss_drift": drift}, summaries=summaries, launches=2, question="levers")
    subject = find_report_input(store, None)
    assert training_of(subject, subject.comparisons[0]).training == training
    keys = {"same": "FASTER", "unproven": "open"}
    assert conclude(subject).advice == keys.get(training, "other")


def test_an_arm_that_is_faster_and_the_same_comes_before_one_on_other_samples(
    store: RunStore, make_comparison: MakeComparison
) -> None:
    group = {"candidate": "group", "level": "stream", "speedup": 1.77, "ci95": [1.75, 1.79]}
    window = {"candidate": "window", "level": "window", "speedup": 1.6, "ci95": [1.5, 1.7]}
    make_comparison(group, window)
    subject = find_report_input(store, None)
    group_one, window_one = subject.comparisons
    found = conclude(subject)
    assert found.best == window_one and found.other is not None and found.other[0] == group_one
    make_comparison(group, {**window, "verdict": "SLOWER"})
    subject = find_report_input(store, None)
    found = conclude(subject)
    assert (found.best, found.other) == (subject.comparisons[0], None)
    assert (found.advice, found.same) == ("open", subject.comparisons[1])


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_recovered_is_told_of_an_arm_that_is_called_what_it_is_the_best_of(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    """Beside an arm that is faster, and not the same training, the best is not called the best of all."""
    group = {"candidate": "group", "level": "stream", "speedup": 1.77, "ci95": [1.75, 1.79]}
    make_comparison(group, {"candidate": "part", "bound_speedup": 1.9, "recovered_share": 0.6})
    subject = find_report_input(store, None)
    assert facts(subject, language)["conclusion"].among == "same"
    assert said(subject, "recovered", language).startswith(said(subject, "among", language))


def found(check: str, case: str | dict[str, str] = "", **values: object) -> dict[str, object]:
    return worded(check, Seen("warn", values, case)).as_dict()


FEW = {"baseline": "static", "pairs": 2, "fewest": 4, "recipe": "demo.yaml", "launches": 4}
WARM = {"first_ms": 9.0, "pace": 2.0, "deviations": 20.0, "limit": 3.5, "warmup_steps": 10}
DRIFTS = {"drift": 0.2, "limit": 0.1, "chance": 0.015, "p": 0.001}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("verdict", ["FASTER", "SLOWER", "SAME"])
def test_two_launches_with_warnings_end_in_what_to_do_next(
    store: RunStore, make_comparison: MakeComparison, verdict: str, language: str
) -> None:
    checks = [
        found("few_launches", {"seen": "few", "limit": "few", "hint": "more"}, candidate="part", **FEW),
        found("short_warmup", run="part-1", **WARM),
    ]
    make_comparison({"candidate": "part", "verdict": verdict, "launches": 2}, checks=checks)
    text = conclusion(store, language)
    assert conclude(find_report_input(store, None)).advice == "again" and "GPU" not in text
    assert [part in text for part in ("`few_launches`, `short_warmup`", "--launches 4", "--warmup-steps 10")] == [
        True
    ] * 3


def test_only_what_is_said_of_the_best_arm_or_the_baseline_is_in_its_way(
    store: RunStore, make_comparison: MakeComparison
) -> None:
    checks = [
        found("few_launches", {"seen": "few", "limit": "few", "hint": "more"}, candidate="other", **FEW),
        found("short_warmup", run="other-1", **WARM),
        found("planning_cost", "other", arm="part", share=0.02, limit=0.01),
        {**found("drift", "slower", run="part-1", **DRIFTS), "severity": "info"},
    ]
    make_comparison({"candidate": "part"}, {"candidate": "other", "speedup": 1.1}, checks=checks)
    assert conclude(find_report_input(store, None)).advice == "FASTER"

    def doubted(subject: ReportInput) -> list[str]:
        best = conclude(subject).best
        assert best is not None
        return [check.id for check in doubts_of(subject, best)]

    for run in ("static-1", "part-1"):
        make_comparison({"candidate": "part"}, checks=[found("drift", "slower", run=run, **DRIFTS)])
        assert doubted(find_report_input(store, None)) == ["drift"]
    wrong = {
        **found(
            "loss_parity", {"limit": "given", "hint": "gradients"}, candidate="part", difference=1.0, tolerance=0.1
        ),
        "severity": "fail",
    }
    make_comparison({"candidate": "part"}, checks=[wrong])
    assert doubted(find_report_input(store, None)) == ["loss_parity"], "what fails makes numbers wrong, whatever it is"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("losses", "case", "chosen"),
    [
        ({"fp16": 1.0, "int8": 1.0, "topk": 1.5}, "kept", "int8"),
        ({"fp16": 1.2, "int8": 1.3, "topk": 1.5}, "none", None),
        ({"fp16": None, "int8": 1.0, "topk": 1.5}, "unknown", None),
    ],
)
def test_compressors_are_concluded_by_bytes_and_quality_not_by_hours(
    store: RunStore,
    make_comparison: MakeComparison,
    losses: dict[str, float | None],
    case: str,
    chosen: str | None,
    language: str,
) -> None:
    """The slower of two that keep the quality is named, as it sends less."""
    times = {"fp16": 2.0, "int8": 4.0, "topk": 100.0}
    summaries = {arm: {"eval": {"loss": loss}, "compression_ratio": times[arm]} for arm, loss in losses.items()}
    arms = [
        {
            "candidate": arm,
            "compared": {"compress.name": ["none", arm]},
            "verdict": "SLOWER",
            "speedup": 1 / (1 + place),
        }
        for place, arm in enumerate(times, start=1)
    ]
    make_comparison(*arms, summaries={"static": {"eval": {"loss": 1.0}}, **summaries}, launches=2, question="compress")
    text, subject = conclusion(store, language), find_report_input(store, None)
    found = facts(subject, language)["compressors"]
    judged = bool(found.within or found.beyond or found.open)
    assert (judged, found.chosen is not None) == {"kept": (True, True), "none": (True, False)}.get(case, (False, False))
    told = said(subject, "compressor", language).replace("\N{NO-BREAK SPACE}", " ")
    assert text.startswith(told) and "GPU" not in text
    assert told in abstract(store, language) and "`fp16`" not in abstract(store, language)
    assert [name for name in times if f"`{name}`" in text] == ([chosen] if chosen else [])
    if chosen:
        assert times[chosen] == 4.0 and " 4 " in text and "0.333" in text
    page = render_report(subject, language, "md", subject.run.path)  # type: ignore[arg-type]  # a language
    assert load_template(language).label("headings.saved") not in page and "-2000" not in page


@pytest.mark.parametrize(("start", "named"), [(30, "late"), (35, None)])
def test_an_arm_that_never_compressed_is_not_judged(
    store: RunStore, make_comparison: MakeComparison, start: int, named: str | None
) -> None:
    """Of 35 steps, 5 of them warm-up."""
    late = {**INT8, "candidate": "late", "compared": {"compress.name": ["none", "int8"], "compress.start_step": [0, 1]}}
    flags = {"late": {"compress.name": "int8", "compress.start_step": start}}
    make_comparison({**late, "speedup": 1.5}, {**INT8, "speedup": 1.1}, flags=flags, question="compress")
    best = conclude(find_report_input(store, None)).best
    assert best is not None and best.candidate == (named or "int8")


@pytest.mark.parametrize("language", LANGUAGES)
def test_steps_are_concluded_by_their_losses_not_by_time(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    """Half the steps cost 0.1 of a loss of 1, whichever seed; packing costs nothing."""
    fewer = {"global_batch": 128, "steps": 12, "warmup_steps": 3}
    many = {"global_batch": 64, "steps": 24, "warmup_steps": 6, "eval": {"loss": 1.0}}
    packed = {"layout": "packed"}
    costly = {"eval": {"loss": 1.1}}
    summaries = {"rows": packed, "few": {**fewer, **costly}, "few_rows": {**packed, **fewer, **costly}}
    arms = [{"candidate": name, "speedup": 1.08, "verdict": "AMBIGUOUS"} for name in summaries]
    make_comparison(*arms, summary=many, summaries=summaries, launches=2, question="steps")
    subject = find_report_input(store, None)
    found = facts(subject, language)["steps_effects"]
    assert [effect.judgement for effect in (found.fewer, found.rows)] == ["costs", "none"]
    told = said(subject, "effects", language).replace("\N{NO-BREAK SPACE}", " ")
    for text in (abstract(store, language), conclusion(store, language)):
        assert told in text
        assert "[+0.1000, +0.1000]" in text and "0.0010" in text and "1.08" not in text


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("question", [None, "sync"])
@pytest.mark.parametrize(
    ("verdict", "speedup", "ci95"),
    [
        ("AMBIGUOUS", 0.993, [0.5, 2.0]),
        ("ESTIMATE", 0.993, None),
        ("SAME", 1.003, [0.99, 1.01]),
        ("SLOWER", 0.8, [0.7, 0.9]),
    ],
)
def test_hours_are_saved_only_by_what_is_faster(
    store: RunStore,
    make_comparison: MakeComparison,
    verdict: str,
    speedup: float,
    ci95: list[float] | None,
    question: str | None,
    language: str,
) -> None:
    """A column of hours stays empty, and the conclusion has the ratio of the times."""
    make_comparison({"verdict": verdict, "speedup": speedup, "ci95": ci95}, question=question)
    text, subject = conclusion(store, language).partition("- ")[0], find_report_input(store, None)
    assert "1,000" not in text
    assert f"{speedup:.3f}" in text and (ci95 is None or f"{ci95[0]:.3f}" in text)
    tables = report_tables(Sources(subject, None, load_template(language), subject.run.path))
    (row,) = [line for line in tables["table.comparisons"].splitlines() if "partition" in line]
    assert "|  |" in row and saved_hours(subject.comparisons[0], subject) is None


def test_hours_are_not_saved_by_other_steps_over_as_many_tokens(
    store: RunStore, make_comparison: MakeComparison
) -> None:
    """Which may need more of them: half of all hours were said to be saved by a quarter of the steps."""
    make_comparison({"candidate": "alike"}, {"candidate": "fewer", "level": "tokens"})
    subject = find_report_input(store, None)
    assert [saved_hours(item, subject) is None for item in subject.comparisons] == [False, True]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("block", ["recommendation", "compressor_time"])
def test_every_ratio_says_which_arm_is_so_many_times_as_fast_as_which(language: str, block: str) -> None:
    """ "X and Y have a ratio of 0.565" was read as the reverse."""
    files = (templates_dir() / "sentences").glob(f"*.{language}.md.j2")
    source = next(text for file in files if f"block {block} " in (text := file.read_text(encoding="utf-8")))
    ratios = [text for text in re.split(r"{% (?!set|endset)", source) if ".speedup" in text]
    assert [text for text in ratios if "baseline.name" not in text] == [] != ratios


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("faster", "told"), [(None, True), ("by_hand", False)])
def test_an_arm_found_faster_that_the_best_is_not_told_from_is_named(
    store: RunStore, make_comparison: MakeComparison, faster: str | None, told: bool, language: str
) -> None:
    pair = {"baseline": "other", "candidate": "by_hand", "faster": faster}
    make_comparison(
        {**BY_HAND, "speedup": 1.2}, {"candidate": "other", "speedup": 1.19}, {"candidate": "slow", "verdict": "SAME"},
        pairs=[pair, {"baseline": "by_hand", "candidate": "slow", "faster": None}],
    )  # fmt: skip
    found = abstract(store, language)
    assert ("`other`" in found) is told and "`slow`" not in found


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("verdict", "local", "case", "beaten"),
    [
        ("AMBIGUOUS", 1.2, "same", None),
        ("AMBIGUOUS", 0.9, "all", None),
        ("ESTIMATE", 1.2, "same", None),
        ("SAME", 1.2, "same", None),
        ("SLOWER", 1.2, "same", "open"),
        ("SLOWER", None, "all", "none"),
    ],
)
def test_the_best_is_called_so_of_what_it_is_the_best_of(
    store: RunStore,
    make_comparison: MakeComparison,
    verdict: str,
    local: float | None,
    case: str,
    beaten: str | None,
    language: str,
) -> None:
    """A strategy that is another training comes out faster, by no verdict; nothing is beaten where that is not told."""
    as_fast = {**BY_HAND, "speedup": 0.98, "verdict": "SAME"}
    further = as_fast if local is None else {**LOCAL, "speedup": local, "verdict": "AMBIGUOUS"}
    make_comparison(
        {"candidate": "flat", "speedup": 0.99, "verdict": verdict},
        {"candidate": "slow", "speedup": 0.6, "verdict": "SLOWER"},
        further,
        flags={"local": {"sync.name": "local_sgd"}},
        question="sync",
    )
    subject = find_report_input(store, None)
    found = facts(subject, language)["conclusion"]
    assert found.among == case and ("local" in found.untold) == (local is not None)
    text = abstract(store, language)
    assert said(subject, "among", language) in text
    assert beaten is None or ("`local`" in text) == (beaten == "open")
