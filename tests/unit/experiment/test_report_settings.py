"""What a report says of data, model, arms, capacities and sizes: what the records say, in both languages.

That every setting stands once, with its value and why the program chose it, the accepted reports show.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

import pytest
from languages import said
from probes import capacity_row
from unit.experiment.conftest import MakeComparison, Reported

from dynbench.analysis.selection import RUNS_FILE
from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config, flatten
from dynbench.experiment.report_input import ReportInput, read_report_input
from dynbench.experiment.report_settings import cost_of, data_facts, memory_facts
from dynbench.experiment.reporting import render_report
from dynbench.plugins import DATASETS, WORKLOADS
from dynbench.report import LANGUAGES, load_template, substitute
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.probe_record import PROBE_FILE
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

Guarded = Callable[..., ReportInput]


def report(store: RunStore, folder: Run) -> str:
    text = render_report(read_report_input(store, folder), "en", "md", folder.path)
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
        fits = (name for name, it in WORKLOADS.items() if it.samples in entry.samples and it.classes <= entry.classes)
        path = "/texts/my.file" if entry.of_files else None
        texts[dataset] = data_said(subject, {}, dataset=dataset, name=next(fits), data_path=path)
        assert ("`my.file`" in texts[dataset]) == entry.of_files
    assert "`unheard_of`" in data_said(subject, {}, dataset="unheard_of")
    assert len({*texts.values()}) == len(texts)


SAID_OF = {
    "`m`": (
        {"weights": "pretrained", "model": "m"},
        {"size": "model", "model": "m"},
        {"name": "causal_lm", "size": "model", "model": "m"},
    ),
    "distilbert-base-uncased [8]": ({"size": "base"},),
    "DistilBERT [8]": ({"size": "auto"},),
    "gpt2": ({"name": "causal_lm", "size": "small"},),
    "`my.py:Own`": ({"name": "my.py:Own", "code_digest": "abc"},),
}
"""A model's name, and the settings under which it, and no other, is said."""


@pytest.mark.parametrize("named", SAID_OF)
def test_the_model_is_that_of_the_run(reported: Reported, named: str) -> None:
    env = {"data": {"model": {"architecture": "gpt2", "layers": 17, "dim": 768}}}
    for config in SAID_OF[named]:
        text = data_said(reported({}), env, **{"weights": "random", **config})
        assert [name for name in SAID_OF if name in text] == [named]
        assert ("17" in text and "768" in text) == (named != "`my.py:Own`")


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


BOTH = (0, 1)
ALL_FAILED = dict.fromkeys((32, 64, 256), BOTH)


@pytest.fixture
def guarded(store: RunStore, reported: Reported) -> Guarded:
    """Two arms, the second with this capacity; `probed` has two ranks, `failed` says where a larger batch failed."""

    def make(capacity: object, failed: Mapping[int, Sequence[int]] = ALL_FAILED, soak: object = None) -> ReportInput:
        rows = [
            capacity_row(rank, length, most - rank, most + 100 if rank in failed.get(length, ()) else None)
            for rank, (length, most) in product(BOTH, {32: 512, 64: 300, 256: 43}.items())
        ]
        probe = store.create("probe", "probe")
        write_json(probe.path / PROBE_FILE, {"memory_limit_mb": 1000.0, "capacity": rows, "soak": soak})
        write_text(probe.config_file, dump_config(load_config(flags={"probe.margin": 0.2})))
        own = {"schedule.mode": "dynamic", "schedule.capacity": probe.id if capacity == "probed" else capacity}
        return reported({}, flags={"partition": own})

    return make


@pytest.mark.parametrize(
    ("capacity", "kind"), [(12, "given"), ((12, 9), "given"), ("probed", "probe"), ("gone", "lost")]
)
def test_how_memory_was_guarded_is_told_as_it_was(guarded: Guarded, capacity: object, kind: str) -> None:
    subject = guarded(capacity)
    found = [(guard["arms"], guard["kind"]) for guard in memory_facts(subject)["guards"]]
    assert found == [(["static"], "none"), (["partition"], kind)]
    assert len({said(subject, "memory_safety", language) for language in LANGUAGES}) == 2


def test_a_soak_is_told_with_its_outcome_and_the_margin_with_its_limit(guarded: Guarded) -> None:
    for soak in (None, {"steps": 50, "ok": True, "shrunk": 1}, {"steps": 50, "ok": False}):
        found = memory_facts(guarded("probed", soak=soak))["guards"][-1]
        assert found["soak"] == (soak and {"shrunk": None, **soak})
        assert (found["margin"], found["limit_mb"]) == (0.2, 1000)


@pytest.mark.parametrize(
    ("failed", "found", "tested"),
    [
        ({}, [], [32, 511, 256, 42]),
        ({64: BOTH, 256: BOTH}, [64, 299, 256, 42], [32, 511, 32, 511]),
        ({64: (0,), 256: BOTH}, [64, 300, 256, 42], [32, 511, 32, 511]),
        (ALL_FAILED, [32, 511, 256, 42], []),
    ],
)
def test_what_was_tested_without_failure_is_no_capacity(
    guarded: Guarded, failed: Mapping[int, Sequence[int]], found: list[int], tested: list[int]
) -> None:
    """Of each the shortest length with the samples there, and the longest."""
    subject = guarded("probed", failed)
    guard = memory_facts(subject)["guards"][-1]
    assert [[*(guard[kind] or {}).values()] for kind in ("found", "tested")] == [found, tested]
    text = said(subject, "memory_safety")
    assert ("20.0" in text) == bool(found), "a margin only where something failed"
    counts = re.findall(r"\b\d+\b", text)
    assert all(counts.count(str(count)) == 1 for count in {*found[1::2], *tested[1::2]}), "told once"


def test_options_of_plugins_that_are_not_loaded_are_told(store: RunStore, make_comparison: MakeComparison) -> None:
    folder = make_comparison({})
    trained = [run for run in store.list() if run != folder]
    own = [{"schedule.turns": turns, "sync.late": True} for turns in (3, 5)]
    configs = [flatten(run.config()) | more for run, more in zip(trained, own, strict=True)]
    kept = {run.id: {"status": "completed", "config": config} for run, config in zip(trained, configs, strict=True)}
    write_json(folder.path / RUNS_FILE, {"runs": kept})

    text = report(store, folder)

    assert "(A/A)" not in text
    assert {"| `schedule.turns` | 3 | 5 |", "| `schedule.turns` | 5 | 3 |"} & set(text.splitlines())
    assert "| `sync.late` | true |" in text


def test_what_rows_were_planned_with_is_told_of_each_arm(reported: Reported) -> None:
    measured = {"schedule.cost_type": "measured", "schedule.cost_coefficients": "[2.0, 0.5, 0.01]"}
    attention = {"schedule.cost_type": "attention", "schedule.attention_a": 0.25}
    flags = {"packed": {"workload.layout": "packed", **measured}, "padded": measured, "plain": attention}
    subject = reported(*({"candidate": name} for name in flags), flags=flags)
    assert {name: cost_of(subject.arms[name][0], subject) for name in flags} == {
        "packed": "`measured`: *2 + 0.5·Σ_i l_i + 0.01·Σ_i l_i^2* ms",
        "padded": "`measured`: *2 + 0.5·n·L + 0.01·n·L^2* ms",
        "plain": "`attention`: *n·L + 0.25·n·L^2*",
    }
