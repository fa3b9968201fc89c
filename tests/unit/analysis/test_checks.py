"""Checks: what they see, and what they say in every language."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from languages import english_words
from probes import make_probe
from pydantic import TypeAdapter
from unit.analysis.conftest import Make, findings, launches, profiled, timed, with_steps

from dynbench.analysis.arms import seconds_per_unit
from dynbench.analysis.checks import CHECKS, comparisons, runs
from dynbench.analysis.checks.evidence import Finding
from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.record import WORDS
from dynbench.analysis.stats import relative_drift
from dynbench.config.schema import Analysis
from dynbench.experiment.report_input import finding_texts
from dynbench.report import LANGUAGES, load_template
from dynbench.runs.atomic import jsonable, write_json
from dynbench.runs.phrase import RECORDS_LANGUAGE, texts
from dynbench.runs.run import Run, host_name, start_mark
from dynbench.runs.store import RunStore

QUIET = {"noise": 0.0}
SLOWED = {"noise": 0.0, "overrides": ("launch.slowdown={0: 1.1, 1: 1.1}",)}
"""Another arm than the baseline: what differs is a setting that changes nothing of the rows."""
SLOW_TIME = pl.col("step_time_max_ms")


def found(arms, **asked):
    """Findings by check."""
    return {finding.id: finding for finding in findings(arms, **asked)}


def test_every_check_is_said():
    written = {
        name
        for module in (comparisons, runs)
        for name, member in vars(module).items()
        if getattr(member, "__annotations__", {}).get("return") == "Iterator[Seen]"
    }
    assert set(CHECKS) == written


def test_healthy_launches_are_clean(launch):
    assert found(launch(4, static={}, partition={})) == {}


@pytest.mark.slow
@pytest.mark.parametrize("other", [QUIET, SLOWED], ids=["alike", "other"])
def test_a_pair_is_advised_one_number_of_launches(launch, other):
    """Two launches that spread by 40 % once said "--launches 4" and 46, and that they show a difference of 403 %."""
    made = launch(6, static=QUIET, other={**other, "slowdown": [1.25, 0.95, 1.3, 0.85, 1.3, 0.9]})
    for number in range(1, 7):
        seen = findings({name: arm[:number] for name, arm in made.items()}, recipe="recipe.yaml")
        assert sum(len(re.findall(r"--launches (\d+)", finding.hint)) for finding in seen) <= 1
        (advice,) = [finding for finding in seen if finding.id in ("few_launches", "resolution")]
        if advice.id == "resolution":
            assert all(int(share) <= 100 for share in re.findall(r"(\d+) %", advice.seen))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factors", "other", "limit", "number"),
    [
        ([1.25, 0.95, 1.2, 0.95], SLOWED, "estimate", None),
        ([1.15, 0.87, 1.15, 0.87], SLOWED, "noise", None),
        ([1.25, 0.95, 1.2, 0.95], QUIET, "noise", None),
        ([1.022, 1.012, 1.012, 1.022], SLOWED, "noise", 8),
    ],
)
def test_resolution_says_how_many_launches_show_what_it_aims_at(launch, factors, other, limit, number):
    """The estimate, or the noise threshold where it is below that or of one configuration; twice what was enough."""
    finding = found(launch(4, static=QUIET, other={**other, "slowdown": factors}))["resolution"]
    assert (finding.severity, finding.cases) == ("info", {"limit": limit, "hint": "again"})
    assert (finding.values["aim"] == "2.0 %") == (limit == "noise")
    spread, estimate = np.std(np.log(factors), ddof=1), np.mean(np.log(factors))
    aim = math.log(1.02) if limit == "noise" else estimate
    normal_theory = ((1.96 + 1.28) * spread / aim) ** 2
    assert finding.values["launches"] == (number or pytest.approx(normal_theory, rel=0.25))


@pytest.mark.slow
@pytest.mark.parametrize("factors", [[1, 1.001, 1.002, 1.001, 2, 0.5, 1.5], [1, 1.03, 0.98, 1.02, 2, 0.5, 1]])
def test_a_contradicted_first_stage_is_the_only_advice_on_launches(launch, factors):
    """One pair was told a longer first stage, and a number of launches from the spread that is contradicted."""
    arms = launch(7, static=QUIET, other={**QUIET, "slowdown": factors})
    assert {"few_launches", "resolution", "first_stage"} & found(arms, first=4).keys() == {"first_stage"}
    assert {"few_launches", "resolution"} & found(arms).keys()


OWN, TOTAL = (0.3, 0.15), (0.07, 0.1327)
"""By what steps spread for their tokens, and beside these: by 15 % in what the tokens do not explain, or in all."""

SIMULATED = 500


def found_in(check, steps, spreads, *, drift=0.0, first=1.0, noise="normal"):
    """Share of simulated runs in which a check finds something.

    Args:
        drift: change over the run, as a part of its median step.
        first: times that the first step takes.
    """
    of_tokens, beside = spreads
    rng = np.random.default_rng(steps)
    cost = rng.lognormal(0, of_tokens, (SIMULATED, steps))
    deviates = rng.standard_t(4, cost.shape) / math.sqrt(2) if noise == "heavy" else rng.standard_normal(cost.shape)
    times = cost * (1 + drift * np.linspace(-0.5, 0.5, steps)) * np.maximum(1 + beside * deviates, 0.2)
    times[:, 0] *= first
    facts = SimpleNamespace(config=SimpleNamespace(train=SimpleNamespace(warmup_steps=5)))
    columns = ({"step_time_max_ms": 20 * row, "padded_tokens_max": each} for row, each in zip(times, cost, strict=True))
    made = [SimpleNamespace(label="x", facts=facts, measured=pl.DataFrame(each)) for each in columns]
    return len(list(check(SimpleNamespace(runs=made, comparisons=())))) / SIMULATED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "steps", "fault", "own"),
    [
        pytest.param(runs.drift, 20, {"drift": -0.45}, 0.85, marks=pytest.mark.matrix),
        (runs.drift, 100, {"drift": 0.2}, 0.9),
        (runs.short_warmup, 10, {"first": 2.0}, 0.85),
        pytest.param(runs.short_warmup, 100, {"first": 2.0}, 0.9, marks=pytest.mark.matrix),
    ],
)
def test_a_fault_is_seen_in_nine_of_ten_runs_and_in_two_of_a_hundred_without_it(check, steps, fault, own):
    """But of few steps in less, if 15 % is what their tokens leave: the t test of the slope, the most powerful unbiased
    one, sees the drift of 20 steps in 0.88 at a level of 0.75 %.

    Alarms are two of a hundred in all; each kind of noise is allowed two standard errors of its runs.
    """
    alarms = []
    for noise in ("normal", "heavy"):
        for spreads, least in ((TOTAL, 0.9), (OWN, own)):
            assert found_in(check, steps, spreads, noise=noise, **fault) >= least
            alarms.append(found_in(check, steps, spreads, noise=noise))
    assert np.mean(alarms) <= 0.02 and max(alarms) <= 0.02 + 2 * math.sqrt(0.02 * 0.98 / SIMULATED)


def test_steps_that_grow_with_their_tokens_do_not_drift(merged):
    """As where a curriculum or the cut of an epoch puts the long samples last."""
    run = merged()
    steps = run.steps.sort("padded_tokens_max").with_columns(step=run.steps["step"], warmup=run.steps["warmup"])
    grown = replace(run, steps=steps)
    assert relative_drift(grown.measured["step_time_max_ms"]) > 0.5
    assert not {"drift", "short_warmup"} & found({"a": [grown]}).keys()


LATE = {"short_warmup": 1 + 9 * (pl.col("step") == 10), "drift": 0.75 + pl.col("step") / 200}
"""By check what makes a baseline slower: a first measured step of ten times its time, or slowing down by half."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "steps", "slower", "severity"),
    [
        ("short_warmup", 20, 1.0, "warn"),
        ("short_warmup", 20, 3.0, "info"),
        ("short_warmup", 600, 1.0, "info"),
        ("drift", 100, 1.0, "warn"),
        ("drift", 100, 3.0, "info"),
    ],
)
def test_what_is_slow_for_a_while_is_a_warning_where_it_makes_the_verdict(launch, check, steps, slower, severity):
    """Of few steps the first is all the difference; a drifting baseline is faster than the other arm only before."""
    made = launch(4, static={**QUIET, "steps": steps, "slowdown": slower}, other={**SLOWED, "steps": steps})
    late = [with_steps(run, step_time_max_ms=SLOW_TIME * LATE[check]) for run in made["static"]]
    total = pl.col("step_time_max_ms").sum()
    made["static"] = [replace(run, blocks=run.measured.select(time_ms=total)) for run in late]
    seen = found(made)[check]
    assert (seen.severity, seen.values["in_doubt"]) == (severity, ["other"] * (severity == "warn"))


def test_the_shortest_launch_has_a_step_in_each_half(merged):
    """Arms may have other numbers of steps."""
    run = merged(steps=1, noise=0.0)
    halves = [seconds_per_unit(run, part=part) for part in ((0, 0.5), (0.5, 1))]
    assert halves == 2 * [pytest.approx(seconds_per_unit(run))]


NAMES = ("static", "partition", "prefix", "window", "other", "elsewhere", "testhost", "data-1", "data-2")
TWO_VIRTUAL = ("launch.launcher=virtual", "launch.world_size=2")
DIFFERING = {"output_difference": 0.1, "gradient_difference": 0.3, "tolerance": 1e-5, "leak": "in fp32, …"}

BY_THEMSELVES = (
    {"overrides": ("launch.nproc=4", "launch.threads=4")},
    {"overrides": ("launch.nproc=16",)},
    {"transfer_ms": 40.0},
    *({"transfer_ms": 40.0, "overrides": (way,)} for way in ("compress.name=fp16", "sync.name=naive")),
    {"transfer_ms": 40.0, "overrides": ("sync.name=local_sgd_torch",)},
    *(
        {"extra": {"bytes_wire": 20_000_000, "bytes_sent": sent, "collectives": messages}}
        for sent, messages in ((40_000_000, 40), (10_000_000, 40), (21_500_000, 10_000))
    ),
    *(
        {"slow": {1: 1.5}, "steps": 150, "overrides": overrides}
        for overrides in ((), ("launch.slowdown={1: 1.3}",), TWO_VIRTUAL)
    ),
    {"overrides": ("sync.communicate=false",)},
    {"env": {"data": {"train": {"classes": 1}}}},
    *(
        {"env": {"packed_rows": {**DIFFERING, "foreign_gradient": seen}}, "overrides": ("workload.layout=flattened",)}
        for seen in (0.02, 0.0)
    ),
)
"""Runs with a fault."""

OTHER_STEPS = (
    ({"warmup_steps": 1, "noise": 0.0}, {"step_time_max_ms": SLOW_TIME * (1 + 9 * (pl.col("step") == 1))}),
    *(
        ({"policy": "partition", "steps": 400}, {"step_time_max_ms": SLOW_TIME * (1 + change * pl.col("step") / 800)})
        for change in (1, -1)
    ),
    ({}, {"skipped": pl.col("step") % 5 == 0}),
    ({}, {"other_ms_mean": SLOW_TIME * 0.1}),
    *(
        (
            {"policy": policy, "overrides": tuple(f"schedule.{setting}" for setting in (f"policy={policy}", *more))},
            {"plan_ms_mean": SLOW_TIME * 0.03},
        )
        for policy, *more in (("prefix",), ("partition",), ("window", "window=4"), ("partition", "micro_batches=4"))
    ),
)
"""Runs, and what makes faults of their steps."""

BESIDE_A_BASELINE = (
    ("prefix", {"loss_shift": 0.05}, {}),
    ("partition", {"loss_shift": 0.05}, {"settings": Analysis(loss_tolerance=0.002)}),
    ("partition", {"loss_shift": float("nan")}, {}),
    ("other", {"loss_shift": 0.05, "overrides": ("train.precision=bf16",)}, {}),
    ("partition", {"env": {"host": "elsewhere"}}, {}),
    ("partition", {"env": {"git": {"commit": "another"}}}, {}),
    ("window", {"window": 8}, {}),
    ("partition", {"fingerprint": "data-2", "status": "interrupted", "steps_written": 20}, {"force": True}),
    ("partition", {}, {"recipe": "results/some-id/recipe.yaml"}),
    ("many", {"world_size": 16}, {}),
)
"""Arm, its only launch, and how it is looked at."""

IN_LAUNCHES = (
    (1, {"overrides": ("workload.dropout=0.1",)}, {"loss_shift": 0.05, "overrides": ("workload.dropout=0.1",)}, {}),
    (5, {"steps": 15}, {"steps": 15}, {}),
    *(
        (4, QUIET, {**SLOWED, "policy": "static", "slowdown": factors}, {})
        for factors in ([1.25, 0.95, 1.2, 0.95], [3.0, 0.34, 2.8, 0.35])
    ),
    (6, {}, {"slowdown": [1, 1, 1, 1, 2, 0.5]}, {"first": 4}),
)
"""Launches of `static` and of `partition`."""


def later(run: MergedRun, hours: float) -> MergedRun:
    started = datetime.fromisoformat(run.facts.started) + timedelta(hours=hours)
    return replace(run, facts=replace(run.facts, started=started.isoformat()))


def faults(make_run: Make) -> Iterator[list[Finding]]:
    """A fault for every wording."""

    def alone(run: MergedRun) -> list[Finding]:
        return findings({run.facts.policy: [run]})

    for fields in BY_THEMSELVES:
        yield alone(merge_run(make_run(**fields)))
    for fields, columns in OTHER_STEPS:
        yield alone(with_steps(merge_run(make_run(**fields)), **columns))
    for name, fields, asked in BESIDE_A_BASELINE:
        yield findings(launches(make_run, 1, **{"static": {}, name: fields}), **asked)
    for number, static, partition, asked in IN_LAUNCHES:
        yield findings(launches(make_run, number, static=static, partition=partition), **asked)
    in_turns = launches(make_run, 2, static={}, partition={})
    for hours in (1, 52):
        yield findings(in_turns | {"partition": [later(run, hours) for run in in_turns["partition"]]})
    for wire_ms in (10.0, 90.0):
        yield alone(timed(merge_run(profiled(make_run(), 50.0)), wire_ms))
    probed = make_probe(RunStore(make_run().path.parent), memory_limit_mb=405.0)
    yield alone(merge_run(make_run("partition", overrides=(f"schedule.capacity={probed.id}",))))
    for damaged in spoilt_files(make_run):
        yield alone(merge_run(damaged))


def spoilt_files(make_run: Make) -> Iterator[Run]:
    """Runs of which a file is gone or torn, or says what no finished run says."""
    bare, torn, evaluated = make_run(), make_run("partition", world_size=3), make_run()
    going_on = make_run(steps_written=20)
    bare.env_file.unlink()
    torn.rank_file(2).write_text("")
    torn.rank_file(1).write_bytes(torn.rank_file(1).read_bytes()[:-9])
    (evaluated.path / "eval.csv").write_text("step,loss,accuracy,samples\n50,nan,0.5,64\n")
    process = {"host": host_name(), "pid": os.getpid(), "pid_start": start_mark(os.getpid())}
    record = json.loads(going_on.record_file.read_text())
    write_json(going_on.record_file, record | {"status": "running", "ended": None} | process)
    yield from (bare, torn, evaluated, going_on)


by_one_process = pytest.mark.xdist_group("planted")


@pytest.fixture(scope="module")
def planted(make_shared_run: Make) -> list[Finding]:
    return [finding for found in faults(make_shared_run) for finding in found]


@pytest.mark.slow
@by_one_process
def test_every_wording_of_every_check_is_planted(planted: list[Finding]) -> None:
    said = {".".join(filter(None, (each.id, field, each.cases.get(field)))) for each in planted for field in WORDS}

    assert said == {say for say in texts() if say.split(".")[0] in CHECKS}


@pytest.mark.slow
@by_one_process
@pytest.mark.parametrize("language", LANGUAGES)
def test_findings_say_the_same_in_every_language(planted: list[Finding], language: str) -> None:
    template = load_template(language)
    for finding in planted:
        record = json.loads(json.dumps(jsonable(finding.as_dict())))
        read = TypeAdapter(Finding).validate_python(record)
        said = dict(zip(("severity", "id", *WORDS), finding_texts(template, read), strict=True))
        earlier = finding_texts(template, replace(finding, values={}, cases={}))
        assert earlier[2] == finding.seen, "in English, as it was written"
        if language == RECORDS_LANGUAGE:
            assert said == {key: record[key] for key in said}
            continue
        names = (*NAMES, *(str(value) for value in finding.values.values() if "/" in str(value)), finding.id)
        for field in WORDS:
            assert english_words(said[field], (*names, *names_in(record))) == [], said[field]


def names_in(record: dict[str, object]) -> tuple[str, ...]:
    """Runs, files and settings that a finding names."""
    values = record["values"]
    assert isinstance(values, dict)
    differing = values.get("differences", {"values": {"items": []}})["values"]["items"]
    noted = values.get("note", {"values": {"file": ""}})["values"]["file"]
    named = (str(values[key]) for key in ("run", "first", "second") if key in values)
    return (*named, *(item["values"]["key"] for item in differing), noted)
