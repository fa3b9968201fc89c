"""Checks: what they see, and what they say in every language."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from compared import compare_arms
from languages import english_words, numbers
from probes import make_probe
from pydantic import TypeAdapter

from dynbench.analysis.arms import named_arms, seconds_per_unit
from dynbench.analysis.checks import CHECKS, comparisons, run_checks
from dynbench.analysis.checks import runs as checks_of_runs
from dynbench.analysis.checks import runs as communication
from dynbench.analysis.checks.evidence import Evidence, Finding
from dynbench.analysis.gate import judge
from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.record import WORDS
from dynbench.analysis.stats import relative_drift
from dynbench.config.schema import Analysis
from dynbench.errors import ChecksFailed
from dynbench.experiment.report_input import finding_texts
from dynbench.report import LANGUAGES, load_template
from dynbench.runs.atomic import jsonable, write_json
from dynbench.runs.phrase import RECORDS_LANGUAGE, texts
from dynbench.runs.records import PROFILE_SCHEMA_VERSION, ProfileRow, RankProfile
from dynbench.runs.run import Run, host_name, start_mark
from dynbench.runs.store import RunStore


def found(arms, *, force=False, first=None):
    """Findings by check for arms given as label to merged runs."""
    grouped = named_arms(arms)
    comparisons = compare_arms(grouped, Analysis(), force=force, first=first) if len(grouped) > 1 else []
    return {finding.id: finding for finding in run_checks(Evidence(grouped, comparisons, Analysis()))}


def test_every_check_has_its_wordings_and_none_is_left_over():
    written = {
        name
        for module in (communication, comparisons, checks_of_runs)
        for name, member in vars(module).items()
        if getattr(member, "__annotations__", {}).get("return") == "Iterator[Seen]"
    }
    assert set(CHECKS) == written
    parts = [say.split(".") for say in texts()]
    assert all({part[1] for part in parts if part[0] == check} == {*WORDS} for check in CHECKS)


@pytest.mark.slow
def test_healthy_launches_are_clean(launch):
    assert found(launch(4, static={}, partition={})) == {}


@pytest.mark.slow
@pytest.mark.parametrize("launches", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("overrides", [(), ("launch.slowdown={0: 1.1, 1: 1.1}",)], ids=["alike", "other"])
def test_a_pair_is_advised_one_number_of_launches(merged, launches, overrides):
    """Two launches that spread by 40 % once said "--launches 4" and 46, and that they show a difference of 403 %."""
    factors = (1.25, 0.95, 1.3, 0.85, 1.3, 0.9)[:launches]
    arms = {
        "static": [merged("static", seed=seed, noise=0.0) for seed in range(launches)],
        "other": [
            merged("static", seed=seed, noise=0.0, slowdown=factor, overrides=overrides)
            for seed, factor in enumerate(factors)
        ],
    }
    grouped = named_arms(arms)
    findings = run_checks(Evidence(grouped, compare_arms(grouped, Analysis()), Analysis(), "recipe.yaml"))
    advised = [re.findall(r"--launches (\d+)", finding.hint) for finding in findings]
    assert sum(map(len, advised)) <= 1
    assert len({"few_launches", "resolution"} & {finding.id for finding in findings}) == 1
    told = [
        share for finding in findings for share in re.findall(r"(\d+) %", finding.seen) if finding.id == "resolution"
    ]
    assert all(int(share) <= 100 for share in told)


SLOWED = ("launch.slowdown={0: 1.1, 1: 1.1}",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factors", "overrides", "cases", "launches"),
    [
        ((1.25, 0.95, 1.2, 0.95), SLOWED, {"limit": "estimate", "hint": "again"}, None),
        ((1.15, 0.87, 1.15, 0.87), SLOWED, {"limit": "noise", "hint": "again"}, None),
        ((1.25, 0.95, 1.2, 0.95), (), {"limit": "noise", "hint": "again"}, None),
        ((1.022, 1.012, 1.012, 1.022), SLOWED, {"limit": "noise", "hint": "again"}, 8),
    ],
    ids=["estimate", "below the noise threshold", "one configuration", "enough launches: twice as many"],
)
def test_resolution_says_how_many_launches_show_what_it_aims_at(merged, factors, overrides, cases, launches):
    arms = {
        "static": [merged("static", seed=seed, noise=0.0) for seed in range(4)],
        "other": [
            merged("static", seed=seed, noise=0.0, slowdown=factor, overrides=overrides)
            for seed, factor in enumerate(factors)
        ],
    }
    finding = found(arms)["resolution"]
    assert (finding.severity, finding.cases) == ("info", cases)
    assert (finding.values["aim"] == "2.0 %") == (cases["limit"] == "noise")
    spread, estimate = np.std(np.log(factors), ddof=1), np.mean(np.log(factors))
    aim = math.log(1.02) if cases["limit"] == "noise" else estimate
    normal_theory = ((1.96 + 1.28) * spread / aim) ** 2
    assert finding.values["launches"] == (launches or pytest.approx(normal_theory, rel=0.25))


@pytest.mark.slow
def test_a_contradicted_first_stage_is_the_only_advice_on_launches(merged):
    """One pair was told a longer first stage, and a number of launches from the spread that is contradicted."""
    for factors in ((1, 1.001, 1.002, 1.001, 2, 0.5, 1.5), (1, 1.03, 0.98, 1.02, 2, 0.5, 1)):
        arms = {
            "static": [merged("static", seed=seed, noise=0.0) for seed in range(7)],
            "other": [merged("static", seed=seed, noise=0.0, slowdown=factor) for seed, factor in enumerate(factors)],
        }
        assert {"few_launches", "resolution", "first_stage"} & found(arms, first=4).keys() == {"first_stage"}
        assert {"few_launches", "resolution"} & found(arms).keys()


OWN, TOTAL = (0.3, 0.15), (0.07, 0.1327)
"""By what steps spread for their tokens, and beside these: by 15 % in what the tokens do not explain, or in all."""


def found_in(check, steps, spreads, *, drift=0.0, first=1.0, noise="normal", runs=500):
    """Share of simulated runs in which a check finds something.

    Args:
        drift: change over the run, as a part of its median step.
        first: times that the first step takes.
    """
    of_tokens, beside = spreads
    rng = np.random.default_rng(steps)
    cost = rng.lognormal(0, of_tokens, (runs, steps))
    deviates = rng.standard_t(4, cost.shape) / math.sqrt(2) if noise == "heavy" else rng.standard_normal(cost.shape)
    times = cost * (1 + drift * np.linspace(-0.5, 0.5, steps)) * np.maximum(1 + beside * deviates, 0.2)
    times[:, 0] *= first
    facts = SimpleNamespace(config=SimpleNamespace(train=SimpleNamespace(warmup_steps=5)))
    tables = [
        pl.DataFrame({"step_time_max_ms": 20 * row, "padded_tokens_max": 1000 * tokens})
        for row, tokens in zip(times, cost, strict=True)
    ]
    launches = [SimpleNamespace(label="x", facts=facts, measured=table) for table in tables]
    return len(list(check(SimpleNamespace(runs=launches, comparisons=())))) / runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "change", "least"),
    [(20, 0.45, 0.9), (20, -0.45, 0.85), (100, 0.2, 0.9), (100, -0.2, 0.9)],
)
def test_drift_is_seen_in_nine_of_ten_runs(steps, change, least):
    """But of 20 steps that get faster, if 15 % is what their tokens leave.

    The t test of the slope, the most powerful unbiased one, sees the drift of these in 0.88 at a level of 0.75 %, that
    of 20 that get slower in 0.92 at one of 1.25 %, and either in 0.90 at one of 1 %.
    """
    assert found_in(checks_of_runs.drift, steps, TOTAL, drift=change) >= 0.9
    assert found_in(checks_of_runs.drift, steps, OWN, drift=change, runs=2000) >= least


@pytest.mark.slow
@pytest.mark.parametrize("steps", [20, 100])
def test_drift_is_seen_in_two_of_a_hundred_runs_without(steps):
    """In all; each kind of noise is allowed two standard errors of its thousand runs."""
    alarms = [
        found_in(checks_of_runs.drift, steps, spreads, noise=noise, runs=1000)
        for spreads, noise in itertools.product((OWN, TOTAL), ("normal", "heavy"))
    ]
    assert np.mean(alarms) <= 0.02 and max(alarms) <= 0.02 + 2 * math.sqrt(0.02 * 0.98 / 1000)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "own"), [(10, 0.85), (100, 0.9)])
def test_a_first_step_of_twice_the_time_is_seen_in_nine_of_ten_runs(steps, own):
    for noise in ("normal", "heavy"):
        assert found_in(checks_of_runs.short_warmup, steps, TOTAL, first=2.0, noise=noise) >= 0.9
        assert found_in(checks_of_runs.short_warmup, steps, OWN, first=2.0, noise=noise) >= own
        for spreads in (OWN, TOTAL):
            assert found_in(checks_of_runs.short_warmup, steps, spreads, noise=noise, runs=1000) <= 0.02


def test_steps_that_grow_with_their_tokens_do_not_drift(merged):
    """As where a curriculum or the cut of an epoch puts the long samples last."""
    run = merged("static", steps=40)
    grown = run.steps.sort("padded_tokens_max").with_columns(step=run.steps["step"], warmup=run.steps["warmup"])
    object.__setattr__(run, "steps", grown)
    assert relative_drift(run.measured["step_time_max_ms"]) > 0.5
    assert not {"drift", "short_warmup"} & set(found({"a": [run]}))


@pytest.mark.parametrize(
    ("slower", "steps", "severity", "verdict"),
    [(1.0, 20, "warn", "FASTER"), (3.0, 20, "info", "FASTER"), (1.0, 600, "info", "SAME")],
)
def test_a_short_warmup_is_a_warning_where_it_makes_the_verdict(merged, slower, steps, severity, verdict):
    """The first measured step of the baseline takes ten times as long: of few steps, that is all the difference."""
    first = pl.col("step_time_max_ms") * (1 + 9 * (pl.col("step") == 10))
    launches = [merged("static", seed=seed, steps=steps, noise=0.0, slowdown=slower) for seed in range(4)]
    for run in launches:
        slow = scaled(run, step_time_max_ms=first).measured["step_time_max_ms"]
        object.__setattr__(run, "blocks", pl.DataFrame({"time_ms": [slow.sum()]}))
    others = [merged("static", seed=seed, steps=steps, noise=0.0, overrides=OTHER_ARM) for seed in range(4)]
    arms = named_arms({"static": launches, "other": others})
    comparisons = compare_arms(arms, Analysis())
    assert [each.verdict for each in comparisons] == [verdict]
    seen = [each for each in run_checks(Evidence(arms, comparisons, Analysis())) if each.id == "short_warmup"]
    assert [each.severity for each in seen] == 4 * [severity]
    assert [each.values["in_doubt"] for each in seen] == 4 * [["other"] if severity == "warn" else []]


def test_the_shortest_launch_has_a_step_in_each_half(merged):
    """Arms may have other numbers of steps."""
    run = merged("static", steps=1, noise=0.0)
    halves = [seconds_per_unit(run, part=part) for part in ((0, 0.5), (0.5, 1))]
    assert halves == 2 * [pytest.approx(seconds_per_unit(run))]


@pytest.mark.parametrize(("slower", "severity"), [(1.0, "warn"), (3.0, "info")])
def test_a_drift_is_a_warning_where_half_of_the_steps_have_another_verdict(merged, slower, severity):
    """Of a baseline that slows down by half, and is faster than the other arm only before."""
    paced = pl.col("step_time_max_ms") * (0.75 + pl.col("step") / 200)
    launches = [merged("static", seed=seed, steps=100, noise=0.0, slowdown=slower) for seed in range(4)]
    others = [merged("static", seed=seed, steps=100, noise=0.0, overrides=OTHER_ARM) for seed in range(4)]
    seen = found({"static": [scaled(run, step_time_max_ms=paced) for run in launches], "other": others})
    assert seen["drift"].severity == severity


def test_drift_is_not_seen_in_heavy_tails():
    """Independent heavy-tailed steps must hardly ever look like drift."""
    assert found_in(checks_of_runs.drift, 60, (0.0, 0.6), noise="heavy", runs=2000) <= 0.02


def test_strict_names_what_is_more_than_information():
    judge([], True, [], [Finding("info", "s", "l", "h", id="virtual_ranks")], {})
    findings = [Finding("warn", "s", "l", "do this", id="drift"), Finding("fail", "s", "l", "h", id="missing_ranks")]
    with pytest.raises(ChecksFailed, match="2 findings of checks: drift, missing_ranks") as caught:
        judge([], True, [], findings, {})
    assert (caught.value.exit_code, caught.value.hint) == (6, "do this")


OTHERS = [language for language in LANGUAGES if language != RECORDS_LANGUAGE]
NAMES = ("static", "partition", "prefix", "window", "other", "elsewhere", "testhost", "data-1", "data-2")
SETTINGS = Analysis()


def findings(
    arms: dict[str, list[MergedRun]],
    *,
    force: bool = False,
    recipe: str | None = None,
    first: int | None = None,
    settings: Analysis = SETTINGS,
) -> list[Finding]:
    grouped = named_arms(arms)
    comparisons = compare_arms(grouped, settings, force=force, first=first) if len(grouped) > 1 else []
    return run_checks(Evidence(grouped, comparisons, settings, recipe))


OTHER_ARM = ("launch.slowdown={0: 1.1, 1: 1.1}",)
"""What makes an arm of made-up runs another one than the baseline."""


def scaled(run: MergedRun, **columns: pl.Expr) -> MergedRun:
    object.__setattr__(run, "steps", run.steps.with_columns(**columns))
    return run


def faults(make_run: Callable[..., Run]) -> Iterator[list[Finding]]:
    """A fault for every wording."""

    def merged(*args: object, **fields: object) -> MergedRun:
        return merge_run(make_run(*args, **fields))

    def alone(run: MergedRun) -> list[Finding]:
        return findings({run.facts.policy: [run]})

    def against(name: str = "partition", both: tuple[str, ...] = (), **fields: object) -> list[Finding]:
        overrides = (*both, *fields.pop("overrides", ()))  # type: ignore[misc]  # a tuple of texts
        baseline = merged("static", overrides=both)
        return findings({"static": [baseline], name: [merged(name, overrides=overrides, **fields)]})

    def undecided(*factors: float, overrides: tuple[str, ...] = ("launch.slowdown={0: 1.1, 1: 1.1}",)) -> list[Finding]:
        slowed = [
            merged("static", seed=seed, noise=0.0, slowdown=factor, overrides=overrides)
            for seed, factor in enumerate(factors)
        ]
        return findings({"static": [merged("static", seed=seed, noise=0.0) for seed in range(4)], "other": slowed})

    time = pl.col("step_time_max_ms")
    forced = [merged("static")], [merged("partition", fingerprint="data-2", status="interrupted", steps_written=20)]
    yield findings({"static": forced[0], "partition": forced[1]}, force=True)
    yield alone(merged("static", world_size=4, ranks_written=2))
    yield against("prefix", loss_shift=0.05)
    yield against(loss_shift=0.05)
    shifted = {"static": [merged("static")], "partition": [merged("partition", loss_shift=0.05)]}
    yield findings(shifted, settings=Analysis(loss_tolerance=0.002))
    yield against(loss_shift=float("nan"))
    yield against(loss_shift=0.05, both=("workload.dropout=0.1",))
    arithmetic = merged("static", loss_shift=0.05, overrides=("train.precision=bf16",))
    yield findings({"static": [merged("static")], "other": [arithmetic]})
    yield against(env={"host": "elsewhere"})
    yield against(env={"git": {"commit": "another"}})
    yield findings({name: [merged(name, steps=15) for _ in range(5)] for name in ("static", "partition")})
    yield findings({"static": [merged("static", slowdown=factor) for factor in (1.0, 1.3, 1.0, 1.4)]})
    yield undecided(1.25, 0.95, 1.2, 0.95)
    yield undecided(1.15, 0.87, 1.15, 0.87)
    yield undecided(3.0, 0.34, 2.8, 0.35)
    slowed = [merged("partition", seed=seed, slowdown=factor) for seed, factor in enumerate((1, 1, 1, 1, 2, 0.5))]
    yield findings({"static": [merged("static", seed=seed) for seed in range(6)], "partition": slowed}, first=4)
    late = [merged("partition") for _ in range(2)]
    for run in late:
        started = datetime.fromisoformat(run.facts.started) + timedelta(hours=52)
        object.__setattr__(run, "facts", replace(run.facts, started=started.isoformat()))
    yield findings({"static": [merged("static") for _ in range(2)], "partition": late})
    early = merged("static", warmup_steps=1, noise=0.0)
    yield alone(scaled(early, step_time_max_ms=time * (1 + 9 * (pl.col("step") == 1))))
    for change in (1, -1):
        paced = time * (1 + change * pl.col("step") / 800)
        yield alone(scaled(merged("partition", steps=400), step_time_max_ms=paced))
    yield alone(merged("static", overrides=("launch.nproc=4", "launch.threads=4")))
    yield findings({"few": [merged("static")], "many": [merged("static", world_size=16)]})
    yield alone(merged("static", overrides=("launch.nproc=16",)))
    yield alone(scaled(merged("static"), skipped=pl.col("step") % 5 == 0))
    yield alone(scaled(merged("static"), other_ms_mean=time * 0.1))
    for policy, more in (
        ("prefix", ()),
        ("partition", ()),
        ("window", ("window=4",)),
        ("partition", ("micro_batches=4",)),
    ):
        overrides = tuple(f"schedule.{setting}" for setting in (f"policy={policy}", *more))
        yield alone(scaled(merged(policy, overrides=overrides), plan_ms_mean=time * 0.03))
    yield alone(merged("static", transfer_ms=40.0))
    for overrides in (("compress.name=fp16",), ("sync.name=naive",), ("sync.name=local_sgd_torch",)):
        yield alone(merged("static", transfer_ms=40.0, overrides=overrides))
    for sent, messages in ((40_000_000, 40), (10_000_000, 40), (21_500_000, 10_000)):
        counts = {"bytes_wire": 20_000_000, "bytes_sent": sent, "collectives": messages}
        yield alone(merged("static", extra=counts))
    for wire_ms in (10.0, 90.0):
        rows = [ProfileRow("backward", "communication", 1.0, 50.0, 0.5)]
        told = make_run("static")
        told.profiler_dir.mkdir()
        seen_there = {"schema_version": PROFILE_SCHEMA_VERSION, **asdict(RankProfile(0, 8, 2, 100.0, rows))}
        write_json(told.profile_file(0), seen_there)
        yield alone(scaled(merge_run(told), comm_ms=pl.lit(wire_ms), step_time_ms_mean=pl.lit(100.0)))
    for overrides in ((), ("launch.slowdown={1: 1.3}",), ("launch.launcher=virtual", "launch.world_size=2")):
        yield alone(merged("static", slow={1: 1.5}, steps=150, overrides=overrides))
    probed = make_probe(RunStore(make_run("static").path.parent), memory_limit_mb=405.0)
    yield alone(merged("partition", overrides=(f"schedule.capacity={probed.id}",)))
    yield alone(merged("static", overrides=("launch.launcher=virtual", "launch.world_size=2")))
    yield alone(merged("static", overrides=("sync.communicate=false",)))
    bare, torn = make_run("static"), make_run("partition", world_size=3)
    bare.env_file.unlink()
    yield alone(merge_run(bare))
    torn.rank_file(2).write_text("")
    torn.rank_file(1).write_bytes(torn.rank_file(1).read_bytes()[:-9])
    yield alone(merge_run(torn))
    evaluated = make_run("static")
    (evaluated.path / "eval.csv").write_text("step,loss,accuracy,samples\n50,nan,0.5,64\n")
    yield alone(merge_run(evaluated))
    yield against("window", window=8)
    going_on = make_run("static", steps_written=20)
    record = json.loads(going_on.record_file.read_text())
    process = {"host": host_name(), "pid": os.getpid(), "pid_start": start_mark(os.getpid())}
    write_json(going_on.record_file, record | {"status": "running", "ended": None} | process)
    yield alone(merge_run(going_on))
    yield findings({name: [merged(name)] for name in ("static", "partition")}, recipe="results/some-id/recipe.yaml")
    yield alone(merged("static", env={"data": {"train": {"classes": 1}}}))
    for seen in ({"foreign_gradient": 0.02}, {"foreign_gradient": 0.0}):
        differing = {"output_difference": 0.1, "gradient_difference": 0.3, "tolerance": 1e-5, "leak": "in fp32, …"}
        yield alone(merged("static", env={"packed_rows": differing | seen}, overrides=("workload.layout=flattened",)))


@pytest.fixture(scope="module")
def planted(make_shared_run: Callable[..., Run]) -> list[Finding]:
    return [finding for found in faults(make_shared_run) for finding in found]


def as_read(finding: Finding) -> Finding:
    return TypeAdapter(Finding).validate_json(json.dumps(jsonable(finding.as_dict())))


def wording(finding: Finding, field: str) -> str:
    return ".".join(filter(None, (finding.id, field, finding.cases.get(field))))


@pytest.mark.slow
def test_every_wording_of_every_check_is_planted(planted: list[Finding]) -> None:
    found = {wording(finding, field) for finding in planted for field in WORDS}

    assert found == {say for say in texts() if say.split(".")[0] in CHECKS}


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_findings_say_the_same_in_every_language(planted: list[Finding], language: str) -> None:
    template = load_template(language)
    for finding in planted:
        record = json.loads(json.dumps(jsonable(finding.as_dict())))
        said = dict(zip(("severity", "id", *WORDS), finding_texts(template, as_read(finding)), strict=True))
        if language == RECORDS_LANGUAGE:
            assert said == {key: record[key] for key in said}
            continue
        names = (*NAMES, *(str(value) for value in finding.values.values() if "/" in str(value)), finding.id)
        for field in WORDS:
            assert said[field] != record[field] or not english_words(record[field]), (finding.id, said[field])
            assert english_words(said[field], (*names, *names_in(record))) == [], said[field]
            assert numbers(said[field]) == numbers(record[field]), (said[field], record[field])
        assert said["severity"] != record["severity"]


def names_in(record: dict[str, object]) -> tuple[str, ...]:
    """Runs, files and settings that a finding names."""
    values = record["values"]
    assert isinstance(values, dict)
    differing = values.get("differences", {"values": {"items": []}})["values"]["items"]
    noted = values.get("note", {"values": {"file": ""}})["values"]["file"]
    runs = (str(values[key]) for key in ("run", "first", "second") if key in values)
    return (*runs, *(item["values"]["key"] for item in differing), noted)


@pytest.mark.slow
@pytest.mark.parametrize("language", OTHERS)
def test_findings_of_an_earlier_version_stay_in_english(planted: list[Finding], language: str) -> None:
    template = load_template(language)
    for finding in planted:
        _, _, seen, _, _ = finding_texts(template, replace(finding, values={}, cases={}))
        assert seen == finding.seen
