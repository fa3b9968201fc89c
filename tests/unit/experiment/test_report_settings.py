"""What a report says of data, model, arms, capacities and sizes: what the records say, in both languages."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from languages import said
from unit.experiment.conftest import MakeComparison, Reported

from dynbench.analysis.selection import RUNS_FILE
from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config, flatten
from dynbench.config.values import all_keys
from dynbench.experiment.report_input import ReportInput, find_report_input, read_report_input
from dynbench.experiment.report_settings import cost_of, data_facts, memory_facts
from dynbench.experiment.reporting import render_report
from dynbench.plugins import DATASETS, WORKLOADS
from dynbench.report import LANGUAGES, load_template, substitute
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

Guards = Callable[..., tuple[Any, ReportInput]]


def report(store: RunStore, subject: Run | None = None) -> str:
    found = find_report_input(store, None) if subject is None else read_report_input(store, subject)
    text = render_report(found, "en", "md", found.run.path)
    assert "{{" not in text
    return text.replace("\N{NO-BREAK SPACE}", " ")


def data_said(subject: ReportInput, env: Mapping[str, object], **config: object) -> str:
    """`{{ say.data }}` with other records."""
    known = {**(subject.first.config or {}), **{f"workload.{key}": value for key, value in config.items()}}
    member = replace(subject.first, config=known, env=env)
    facts = data_facts(replace(subject, arms={subject.baseline: [member]}))
    return substitute(load_template("en"), "{{ say.data }}", facts)


def test_the_data_is_that_of_the_run(reported: Reported) -> None:
    """Every data set is named, and its file."""
    subject = reported({})
    texts = {}
    for dataset, entry in DATASETS.items():
        (name, *_) = (
            name for name, it in WORKLOADS.items() if it.samples in entry.samples and it.classes <= entry.classes
        )
        path = "/texts/my.file" if entry.of_files else None
        texts[dataset] = data_said(subject, {}, dataset=dataset, name=name, data_path=path)
        assert ("`my.file`" in texts[dataset]) == entry.of_files
    assert "`unheard_of`" in data_said(subject, {}, dataset="unheard_of")
    assert len({*texts.values()}) == len(texts)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"weights": "pretrained", "model": "m"}, "`m`"),
        ({"size": "base"}, "distilbert-base-uncased [8]"),
        ({"size": "model", "model": "m"}, "`m`"),
        ({"size": "auto"}, "DistilBERT [8]"),
        ({"size": "small"}, "DistilBERT [8]"),
        ({"name": "causal_lm", "size": "small"}, "gpt2"),
        ({"name": "causal_lm", "size": "model", "model": "m"}, "`m`"),
        ({"name": "image_classification", "size": "small"}, "ResNet"),
        ({"name": "mlp"}, "50"),
        ({"name": "my.py:Own", "code_digest": "abc"}, "`my.py:Own`"),
    ],
)
def test_the_model_is_that_of_the_run(reported: Reported, config: dict[str, object], named: str) -> None:
    env = {"data": {"model": {"architecture": "gpt2", "layers": 17, "dim": 768}}}
    text = data_said(reported({}), env, **{"weights": "random", **config})
    every = ("`m`", "distilbert-base-uncased [8]", "DistilBERT [8]", "gpt2", "ResNet", "50", "`my.py:Own`")
    assert [name for name in every if name in text] == [named]
    assert ("17" in text and "768" in text) == (named != "`my.py:Own`")


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({}, {"evaluation": None, "train_cut": None, "named_labels": ""}),
        (
            {
                "train": {"samples": 1800, "tokens": 7500, "cut_samples": 1203, "cut_tokens": 2500},
                "eval": {"samples": 200, "cut_samples": 0, "cut_tokens": 0},
                "labels": {"negative": 0, "positive": 1},
                "decisions": {"workload.eval": {"value": 200, "reason": "no evaluation file"}},
            },
            {
                "train": 1800,
                "train_cut": (1203, 2500),
                "cut_share": 0.25,
                "evaluation": 200,
                "held_out": True,
                "named_labels": "negative=0, positive=1",
            },
        ),
        ({"train": {"samples": 9}, "eval": None, "decisions": {"workload.eval": {}}}, {"evaluation": 0}),
    ],
)
def test_what_became_of_the_samples_is_told(
    store: RunStore, make_comparison: MakeComparison, facts: dict[str, object], found: dict[str, object]
) -> None:
    make_comparison({})
    for run in store.list():
        write_json(run.env_file, {"data": {**facts, "lengths": {"mean": 5.0, "p50": 5, "p95": 9, "max": 11}}})
    told = data_facts(find_report_input(store, None))["data"]
    assert {key: getattr(told["recorded"], key) for key in found} == found
    assert (told["p95"], told["has_lengths"]) == (9, True)
    texts = [said(find_report_input(store, None), "data", language) for language in LANGUAGES]
    numbers = [one for value in found.values() for one in (value if isinstance(value, tuple) else [value])]
    counts = [f"{value:,}" for value in numbers if isinstance(value, int) and value > 1]
    assert all(count in text for count in counts for text in texts)


def test_every_setting_stands_once_with_its_value_and_automatic_choices_with_their_reasons(
    store: RunStore, make_comparison: MakeComparison
) -> None:
    """Where the arms differ in the table of arms, else in the appendix; per launch, all values."""
    own = {"schedule.mode": "dynamic", "schedule.buffer": 57, "schedule.window": 8, "schedule.capacity": 31}
    make_comparison({}, flags={"partition": own})
    decided = {"schedule.buffer": {"value": 57, "reason": "because | so"}}
    shared = {"train.precision": {"value": "fp32", "reason": "on a toaster"}}
    for run in store.list():
        if run.record().command == "train":
            own_choice = decided if run.config().schedule.buffer == 57 else {}
            write_json(run.env_file, {"decisions": {**shared, **own_choice}})

    text = report(store)

    arms = text.partition("### Setting")[2].partition("### Measurement")[0]
    appendix = text.partition("## Appendix: runs and settings")[2]
    rows = {key: re.findall(rf"^\|[^|]*`{re.escape(key)}`[^|]*\|.*$", text, re.MULTILINE) for key in all_keys()}
    assert {key: len(found) for key, found in rows.items()} == dict.fromkeys(all_keys(), 1)
    unset = load_template("en").labels["words.unset"]
    assert re.search(r"`schedule.window`\) \| 1 \| 8 \|", arms)
    assert re.search(rf"`schedule.capacity`\) \| {unset} \| 31 \|", arms)
    assert "57 (because \\| so) |" in arms
    assert "`train.weight_decay` | 0.01 |" in appendix and "| `train.precision` | auto | on a toaster |" in appendix


def test_what_is_gone_is_called_missing(store: RunStore, make_comparison: MakeComparison) -> None:
    folder = make_comparison({})
    for run in store.list():
        if run != folder:
            shutil.rmtree(run.path)
    labels = load_template("en").labels

    text = report(store, folder)

    subject = read_report_input(store, folder)
    assert not data_facts(subject)["data"]["known"] and said(subject, "data") in text
    assert f"| {labels['settings.cpu']} | {labels['words.missing']} |" in text
    assert said(subject, "arms") in text


def ends(shortest: int, most: int, longest: int, least: int) -> dict[str, int]:
    return {"shortest": shortest, "most": most, "longest": longest, "least": least}


BOTH = (0, 1)
ALL_FAILED = dict.fromkeys((32, 64, 256), BOTH)


@pytest.fixture
def guards(store: RunStore, reported: Reported) -> Guards:
    """How two arms are guarded, the second by this capacity, and the report that says so.

    `a-probe` is of two ranks; `failed` are those at which a larger batch failed, by length.
    """

    def make(
        capacity: object, failed: Mapping[int, Sequence[int]] = ALL_FAILED, soak: object = None
    ) -> tuple[Any, ReportInput]:
        rows = [
            {
                "rank": rank,
                "length": length,
                "max_batch": most - rank,
                "tested_fail": most + 100 if rank in failed.get(length, ()) else None,
            }
            for rank in (0, 1)
            for length, most in ((32, 512), (64, 300), (256, 43))
        ]
        probe = store.root / "a-probe"
        probe.mkdir(parents=True)
        write_json(probe / "run.json", {})
        write_json(probe / "probe.json", {"memory_limit_mb": 2000.0, "capacity": rows, "soak": soak})
        (probe / "config.yaml").write_text(dump_config(load_config(flags={"probe.margin": 0.2})), encoding="utf-8")
        subject = reported({}, flags={"partition": {"schedule.mode": "dynamic", "schedule.capacity": capacity}})
        assert all("{{" not in said(subject, "memory_safety", language) for language in LANGUAGES)
        return memory_facts(subject)["guards"], subject

    return make


@pytest.mark.parametrize(
    ("capacity", "kind"), [(None, "none"), (12, "given"), ((12, 9), "given"), ("a-probe", "probe"), ("gone", "lost")]
)
def test_how_memory_was_guarded_is_told_as_it_was(guards: Guards, capacity: object, kind: str) -> None:
    of_arms = [(["static", "partition"], "none")] if kind == "none" else [(["static"], "none"), (["partition"], kind)]
    assert [(guard["arms"], guard["kind"]) for guard in guards(capacity)[0]] == of_arms


@pytest.mark.parametrize("soak", [None, {"steps": 50, "ok": True, "shrunk": 1}, {"steps": 50, "ok": False}])
def test_a_soak_is_told_with_its_outcome_and_the_margin_with_its_limit(guards: Guards, soak: Any) -> None:
    found = guards("a-probe", soak=soak)[0][-1]
    assert found["soak"] == (soak and {"shrunk": None, **soak})
    assert (found["margin"], found["limit_mb"]) == (0.2, 2000)


@pytest.mark.parametrize(
    ("failed", "found", "tested"),
    [
        ({}, None, ends(32, 511, 256, 42)),
        ({64: BOTH, 256: BOTH}, ends(64, 299, 256, 42), ends(32, 511, 32, 511)),
        ({64: (0,), 256: BOTH}, ends(64, 300, 256, 42), ends(32, 511, 32, 511)),
        (ALL_FAILED, ends(32, 511, 256, 42), None),
    ],
)
def test_what_was_tested_without_failure_is_no_capacity(
    guards: Guards,
    failed: dict[int, tuple[int, ...]],
    found: dict[str, int] | None,
    tested: dict[str, int] | None,
) -> None:
    known, subject = guards("a-probe", failed)
    assert (known[-1]["kind"], known[-1]["found"], known[-1]["tested"]) == ("probe", found, tested)
    for language in LANGUAGES:
        text = said(subject, "memory_safety", language)
        assert ("20.0" in text) == (found is not None), "a margin only where something failed"
        counts = {str(count) for one in (found, tested) if one is not None for count in (one["most"], one["least"])}
        assert all(text.count(count) == 1 for count in counts), "one length that is shortest and longest, told once"


def test_options_of_plugins_that_are_not_loaded_are_told(store: RunStore, make_comparison: MakeComparison) -> None:
    folder = make_comparison({})
    trained = [run for run in store.list() if run != folder]
    own = [{"schedule.turns": turns, "sync.late": True} for turns in (3, 5)]
    kept = {
        run.id: {"status": "completed", "config": flatten(run.config()) | more}
        for run, more in zip(trained, own, strict=True)
    }
    write_json(folder.path / RUNS_FILE, {"runs": kept})

    text = report(store)

    assert "(A/A)" not in text
    assert {"| `schedule.turns` | 3 | 5 |", "| `schedule.turns` | 5 | 3 |"} & set(text.splitlines())
    assert "| `sync.late` | true |" in text


def test_what_rows_were_planned_with_is_told_of_each_arm(reported: Reported) -> None:
    measured = {"schedule.cost_type": "measured", "schedule.cost_coefficients": "[2.0, 0.5, 0.01]"}
    flags = {
        "packed": {"workload.layout": "packed", **measured},
        "flattened": {"workload.layout": "flattened", "schedule.cost_type": "attention"},
        "padded": measured,
        "plain": {"schedule.cost_type": "attention", "schedule.attention_a": 0.25},
    }
    subject = reported(*({"candidate": name} for name in flags), flags=flags)
    assert {name: cost_of(subject.arms[name][0], subject) for name in flags} == {
        "packed": "`measured`: *2 + 0.5·Σ_i l_i + 0.01·Σ_i l_i^2* ms",
        "flattened": "`attention`: *Σ_i l_i + 0.001·Σ_i l_i^2*",
        "padded": "`measured`: *2 + 0.5·n·L + 0.01·n·L^2* ms",
        "plain": "`attention`: *n·L + 0.25·n·L^2*",
    }
