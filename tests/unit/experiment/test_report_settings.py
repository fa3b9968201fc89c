"""What a report says of data, model, arms, capacities and sizes: what the records say, in both languages."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from math import comb
from pathlib import Path

import numpy as np
import pytest

from dynbench.analysis.kept import RUNS_FILE
from dynbench.config.describe import all_keys
from dynbench.config.digest import flatten
from dynbench.config.dump import dump_config
from dynbench.config.load import load_config
from dynbench.errors import UsageError
from dynbench.experiment.enumeration import fits_enumeration, large, plan_counts
from dynbench.experiment.reporting import render_report
from dynbench.experiment.subject import find_subject, read_subject
from dynbench.plugins import DATASETS, WORKLOADS
from dynbench.report import LANGUAGES, load_template
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.prefix_enumerate import REFERENCE_LIMIT, least_by_enumeration

MakeComparison = Callable[..., Run]


def report(store: RunStore, language: str = "en", subject: Run | None = None) -> str:
    found = find_subject(store, None) if subject is None else read_subject(store, subject)
    text = render_report(found, language, "md", found.run.path)
    assert "{{" not in text
    return text.replace("\N{NO-BREAK SPACE}", " ")


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def told(language: str, text: str, *keys: str) -> list[str]:
    """Which of the template's texts stand in a report: those whose every piece between placeholders does."""
    labels = load_template(language).labels
    pieces = {key: [unwrapped(piece) for piece in re.split(r"\{\{ [\w.]+ \}\}", labels[key])] for key in keys}
    return [key for key, found in pieces.items() if all(piece in unwrapped(text) for piece in found)]


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("dataset", DATASETS)
def test_the_data_is_that_of_the_run(
    store: RunStore, make_comparison: MakeComparison, language: str, dataset: str, tmp_path: Path
) -> None:
    files = {}
    if DATASETS[dataset].of_files:
        (tmp_path / f"my.{dataset}").write_text("x", encoding="utf-8")
        files = {"workload.data_path": str(tmp_path / f"my.{dataset}")}
    entry = DATASETS[dataset]
    (name, *_) = (name for name, it in WORKLOADS.items() if it.samples in entry.samples and it.classes <= entry.classes)
    make_comparison({}, flags={"static": {"workload.dataset": dataset, "workload.name": name, **files}})

    text = report(store, language)

    assert told(language, text, *(f"data.{name}" for name in DATASETS)) == [f"data.{dataset}"]
    assert (f"my.{dataset}" in text) == bool(files)


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("flags", "key"),
    [
        ({"workload.weights": "pretrained"}, "model.pretrained"),
        ({"workload.size": "base"}, "model.random_base"),
        ({"workload.size": "model"}, "model.random_model"),
        ({}, "model.random_small"),
        ({"workload.name": "causal_lm", "workload.size": "small"}, "model.causal_lm"),
        ({"workload.name": "causal_lm", "workload.size": "model", "workload.model": "m"}, "model.random_model"),
    ],
)
def test_the_model_is_that_of_the_run(
    store: RunStore, make_comparison: MakeComparison, language: str, flags: dict[str, object], key: str
) -> None:
    make_comparison({}, flags={"static": flags})

    text = report(store, language)

    sizes = (f"model.random_{size}" for size in ("small", "base", "model"))
    keys = (*sizes, "model.causal_lm", "model.pretrained", "model.own")
    assert told(language, text, *keys) == [key]
    generated = told(language, text, "data.embedded", "data.embedded_causal_lm")
    assert generated == ["data.embedded_causal_lm" if "workload.name" in flags else "data.embedded"]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("facts", "notes", "counts"),
    [
        ({}, [], []),
        (
            {
                "train": {"samples": 1800, "tokens": 7500, "cut_samples": 1203, "cut_tokens": 2500},
                "eval": {"samples": 200, "cut_samples": 0, "cut_tokens": 0},
                "labels": {"negative": 0, "positive": 1},
                "decisions": {"workload.eval": {"value": 200, "reason": "no evaluation file"}},
            },
            ["cut", "held_out", "labels"],
            ["1,203", "2,500", "25.0 %", "200", "negative=0, positive=1"],
        ),
        (
            {
                "train": {"samples": 9, "tokens": 90, "cut_samples": 0, "cut_tokens": 0},
                "eval": {"samples": 4},
                "labels": {},
                "decisions": {},
            },
            ["evaluation"],
            ["4"],
        ),
        ({"train": {"samples": 9}, "eval": None, "decisions": {"workload.eval": {}}}, ["unevaluated"], []),
    ],
)
def test_what_became_of_the_samples_is_told(
    store: RunStore,
    make_comparison: MakeComparison,
    language: str,
    facts: dict[str, object],
    notes: list[str],
    counts: list[str],
) -> None:
    make_comparison({})
    for run in store.list():
        write_json(run.env_file, {"data": {**facts, "lengths": {"mean": 5.0, "p50": 5, "p95": 9, "max": 11}}})

    text = report(store, language)

    every = ("cut", "held_out", "evaluation", "unevaluated", "labels")
    assert told(language, text, *(f"data.{name}_note" for name in every)) == [f"data.{name}_note" for name in notes]
    setting = unwrapped(text).partition("4.1")[2]
    assert all(count in setting for count in counts)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("rates", "shown"),
    [
        ({"dropout": 0.2, "attention_dropout": 0.1}, "0.2"),
        ({"resid_pdrop": 0.3}, "0.3"),
        ({}, {"en": "none", "zh": "无"}),
    ],
)
def test_the_dropout_is_that_of_the_model(
    store: RunStore,
    make_comparison: MakeComparison,
    language: str,
    rates: dict[str, float],
    shown: str | dict[str, str],
) -> None:
    make_comparison({}, flags={"static": {"workload.name": "causal_lm", "workload.size": "tiny"}})
    for run in store.list():
        write_json(run.env_file, {"data": {"model": {"architecture": "gpt2", "dropout": rates}}})

    text = report(store, language)

    expected = shown if isinstance(shown, str) else shown[language]
    assert f"| Dropout | {expected} |" in text
    assert "`tiny`" in unwrapped(text) and {"en": "of gpt2's architecture", "zh": "gpt2"}[language] in unwrapped(text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_model_without_dropout_has_none(store: RunStore, make_comparison: MakeComparison, language: str) -> None:
    """That of the digits, whose records say nothing of rates, was "not measured"."""
    make_comparison(flags={"static": {"workload.name": "mlp"}})
    for run in store.list():
        write_json(run.env_file, {"data": {"model": {"architecture": "mlp"}}})
    assert f"| Dropout | {load_template(language).labels['words.none']} |" in report(store, language)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_subset_is_told(store: RunStore, make_comparison: MakeComparison, language: str) -> None:
    note = {"en": "a random subset of 500", "zh": "随机抽取的 500 个样本"}[language]
    make_comparison({}, flags={"static": {"workload.subset": 500}})
    assert note in unwrapped(report(store, language))
    make_comparison({})
    assert note not in unwrapped(report(store, language))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_setting_stands_once_with_its_value(
    store: RunStore, make_comparison: MakeComparison, language: str
) -> None:
    """Where the arms differ in the table of arms, else in the appendix; per launch, all values."""
    own = {
        "schedule.policy": "window", "schedule.mode": "dynamic", "schedule.window": 8, "schedule.capacity": 31,
        "schedule.cost_type": "attention", "schedule.attention_a": 0.25,
    }  # fmt: skip
    make_comparison({}, flags={"partition": own})

    text = report(store, language)

    arms = text.partition("### 4.1")[2].partition("### 4.2")[0]
    appendix = text[text.rindex("\n## ") :]
    rows = {key: re.findall(rf"^\|[^|]*`{re.escape(key)}`[^|]*\|.*$", text, re.MULTILINE) for key in all_keys()}
    assert {key: len(found) for key, found in rows.items()} == dict.fromkeys(all_keys(), 1)
    unset = load_template(language).labels["words.unset"]
    assert re.search(r"`schedule.window`\) \| 1 \| 8 \|", arms)
    assert re.search(rf"`schedule.capacity`\) \| {unset} \| 31 \|", arms)
    assert "`attention`: *n·L + 0.25·n·L^2*" in arms
    assert "`train.weight_decay` | 0.01 |" in appendix


def test_automatic_choices_stand_with_their_reasons(store: RunStore, make_comparison: MakeComparison) -> None:
    make_comparison({}, flags={"partition": {"schedule.mode": "dynamic", "schedule.buffer": 57}})
    decided = {"schedule.buffer": {"value": 57, "reason": "because | so"}}
    shared = {"train.precision": {"value": "fp32", "reason": "on a toaster"}}
    for run in store.list():
        if run.record().command == "train":
            buffer = run.config().schedule.buffer
            write_json(run.env_file, {"decisions": {**shared, **(decided if buffer == 57 else {})}})

    text = report(store)

    assert "57 (because \\| so) |" in text
    assert "| `train.precision` | auto | on a toaster |" in text


@pytest.mark.parametrize("language", LANGUAGES)
def test_arms_of_equal_settings_are_called_so(store: RunStore, make_comparison: MakeComparison, language: str) -> None:
    labels = load_template(language).labels
    make_comparison({})
    assert unwrapped(labels["arms.same"]) in unwrapped(report(store, language))
    make_comparison()
    assert unwrapped(labels["arms.one"]) in unwrapped(report(store, language))


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_gone_is_called_missing(store: RunStore, make_comparison: MakeComparison, language: str) -> None:
    folder = make_comparison({})
    for run in store.list():
        if run != folder:
            shutil.rmtree(run.path)
    labels = load_template(language).labels

    text = report(store, language, folder)

    assert f"| {labels['settings.workload']} | {labels['words.missing']} |" in text
    assert unwrapped(labels["data.missing"]) in unwrapped(text)
    assert unwrapped(labels["arms.missing"]) in unwrapped(text)


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("capacity", "key"), [(None, "none"), (12, "given"), ((12, 9), "given"), ("a-probe", "probe"), ("gone", "lost")]
)
@pytest.mark.parametrize(
    ("soak", "outcome"),
    [(None, "none"), ({"steps": 50, "ok": True, "shrunk": 1}, "passed"), ({"steps": 50, "ok": False}, "failed")],
)
def test_how_memory_was_guarded_is_told_as_it_was(
    store: RunStore,
    make_comparison: MakeComparison,
    language: str,
    capacity: object,
    key: str,
    soak: object,
    outcome: str,
) -> None:
    rows = [
        {"rank": rank, "length": length, "max_batch": most - rank, "tested_fail": most + 100}
        for rank in (0, 1)
        for length, most in ((32, 400), (256, 41))
    ]
    make_comparison({}, flags={"partition": {"schedule.mode": "dynamic", "schedule.capacity": capacity}})
    probe = store.root / "a-probe"
    probe.mkdir()
    write_json(probe / "run.json", {})
    write_json(probe / "probe.json", {"capacity": rows, "memory_limit_mb": 2000.0, "soak": soak})
    (probe / "config.yaml").write_text(dump_config(load_config(flags={"probe.margin": 0.2})), encoding="utf-8")

    section = report(store, language).partition("### 4.8")[2].partition("\n## ")[0]

    kinds = ("none", "unread", "given", "probe", "lost")
    of_static = f"memory.{'unread' if key == 'probe' else 'none'}"  # which has no capacity
    expected = [of_static] if key == "none" else [of_static, f"memory.{key}"]
    assert told(language, section, *(f"memory.{kind}" for kind in kinds)) == expected
    soaks = ("passed", "failed", "none")
    said = told(language, section, *(f"memory.soak_{kind}" for kind in soaks))
    assert said == ([f"memory.soak_{outcome}"] if key == "probe" else [])
    if key == "probe":
        assert all(number in section for number in ("399", "40", "20.0 %", "2,000", "256"))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("failed", "expected", "numbers"),
    [
        ({}, ["probe_free"], ("511", "42")),
        ({64: (0, 1), 256: (0, 1)}, ["probe", "probe_partly"], ("299", "42", "511")),
        ({64: (0,), 256: (0, 1)}, ["probe", "probe_partly"], ("300", "42", "511")),
        ({32: (0, 1), 64: (0, 1), 256: (0, 1)}, ["probe"], ("511", "42")),
    ],
)
def test_what_was_tested_without_failure_is_no_capacity(
    store: RunStore,
    make_comparison: MakeComparison,
    language: str,
    failed: dict[int, tuple[int, ...]],
    expected: list[str],
    numbers: tuple[str, ...],
) -> None:
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
    make_comparison({}, flags={"partition": {"schedule.mode": "dynamic", "schedule.capacity": "a-probe"}})
    probe = store.root / "a-probe"
    probe.mkdir()
    write_json(probe / "run.json", {})
    write_json(probe / "probe.json", {"capacity": rows, "memory_limit_mb": 2000.0, "soak": None})
    (probe / "config.yaml").write_text(dump_config(load_config(flags={"probe.margin": 0.2})), encoding="utf-8")

    section = report(store, language).partition("### 4.8")[2].partition("\n## ")[0]

    kinds = ("probe", "probe_partly", "probe_free")
    assert told(language, section, *(f"memory.{kind}" for kind in kinds)) == [f"memory.{kind}" for kind in expected]
    assert all(
        section.count(number) == 1 for number in numbers
    )  # also where one length is the shortest and the longest
    assert ("20.0" in section) == ("probe" in expected)  # a margin only where something failed


@pytest.mark.parametrize(("ranks", "batch", "buffer"), [(2, 8, 7), (3, 9, 4), (4, 12, 9), (8, 64, 57)])
def test_the_number_of_plans_and_where_enumeration_ends(ranks: int, batch: int, buffer: int) -> None:
    texts = plan_counts(ranks, batch, buffer)

    assert texts["plans.count"] == large(comb(batch - 1, ranks - 1))
    if batch <= 12:
        brute = [1 for counts in _counts(ranks, batch) if max(counts) <= buffer]
        assert texts["plans.within_buffer"] == str(len(brute))
    most = int(str(texts["plans.most_ranks"]))
    assert comb(batch - 1, most - 1) <= REFERENCE_LIMIT
    assert most == batch or comb(batch - 1, most) > REFERENCE_LIMIT
    assert fits_enumeration(ranks, batch, buffer) == (texts["plans.fits"] is not None)


def test_the_solver_refuses_where_the_report_says_so() -> None:
    costs = np.arange(1.0, 58.0)[None, :] + np.zeros((8, 1))
    assert not fits_enumeration(8, 64, 57)
    with pytest.raises(UsageError, match="enumerate would try"):
        least_by_enumeration(costs, 64)


def test_huge_sizes_are_counted_without_trying() -> None:
    texts = plan_counts(1024, 8192, 40)

    assert re.fullmatch(r"\*\d\.\d·10\^\d+\*", str(texts["plans.count"]))
    assert texts["plans.within_buffer"] is None
    assert plan_counts(None, 8, 8)["plans.count"] is None


def _counts(ranks: int, batch: int) -> list[tuple[int, ...]]:
    if ranks == 1:
        return [(batch,)]
    return [(first, *rest) for first in range(1, batch - ranks + 2) for rest in _counts(ranks - 1, batch - first)]


@pytest.mark.parametrize(("language", "drawn"), [("en", ""), ("zh", "`of which … train`")])
def test_ranks_that_train_nothing_are_told_apart(
    store: RunStore, make_comparison: MakeComparison, language: str, drawn: str
) -> None:
    label = load_template(language).labels["settings.workers"]
    make_comparison({}, summary={"world_size": 3, "workers": 2})
    served = report(store, language)
    assert f"| {label} | 2 |" in served
    assert drawn in served
    make_comparison({}, summary={"world_size": 3, "workers": 3})
    plain = report(store, language)
    assert label not in plain
    assert "of which … train" not in plain


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

    assert unwrapped(load_template("en").labels["arms.same"]) not in unwrapped(text)
    assert {"| `schedule.turns` | 3 | 5 |", "| `schedule.turns` | 5 | 3 |"} & set(text.splitlines())
    assert "| `sync.late` | true |" in text
