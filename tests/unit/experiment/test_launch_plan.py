"""Which arms share a launch or a probe, in what order they are launched, what is done, and what comes before."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import fake_training
import pytest
from fake_training import FakeTraining
from hypothesis import given
from hypothesis import strategies as st
from probes import make_probe
from recipe_files import load_cells

from dynbench.config.layers import load_config
from dynbench.config.recipes import Launches, load_recipe
from dynbench.config.schema import Config, changed, differences, is_like
from dynbench.engine.launching import run_launch as attach
from dynbench.engine.launching.resolve import Machine
from dynbench.errors import ConfigError, DynbenchError, Interrupted, RecordError, UsageError, WorkerFailed
from dynbench.experiment import launch_plan, launches, preflight, training
from dynbench.experiment.cells import start_cells
from dynbench.experiment.compare import run_comparison, start_comparison
from dynbench.experiment.launch_plan import (
    STATE_FILE,
    CompareState,
    Grouping,
    apart,
    decide_grouping,
    plan_state,
    read_state,
)
from dynbench.experiment.training import exposed_turns, run_training, turn_steps, with_null_arms
from dynbench.plugins import STRATEGIES
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

BASE = "launch.launcher=torchrun launch.nproc=2 launch.threads=1 launch.device=cpu workload.dropout=0"
PARTITION = "schedule.policy=partition"
IMAGES = "workload.name=image_classification"
ONE, OTHER = (f"workload.name={name}.py:Mine" for name in ("one", "two"))


def arms(**settings: str) -> dict[str, Config]:
    return {name: load_config(None, f"{BASE} {given}".split()) for name, given in settings.items()}


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        *(("", setting, None) for setting in (PARTITION, "launch.slowdown=0:1.5", "train.precision=bf16")),
        *(("", setting, None) for setting in ("train.eval_every=5", "sync.bucket_mb=1", "train.seed=4")),
        (IMAGES, "workload.name=mlp", None),
        (ONE, ONE, None),
        ("", f"{PARTITION} launch.nproc=3", "launch.nproc is 2 in arm a, 3 in arm b"),
        ("", "launch.threads=2", "launch.threads is 1 in arm a, 2 in arm b"),
        ("", "launch.timeout_s=60", "launch.timeout_s is 600 in arm a, 60 in arm b"),
        ("", "train.steps=7", "train.steps is .* in arm a, 7 in arm b"),
        ("", "train.warmup_steps=0", "train.warmup_steps is .* in arm a, 0 in arm b"),
        (PARTITION, f"{PARTITION} train.profile_steps=2", "train.profile_steps of arm b is 2"),
        (f"{IMAGES} workload.workers=2", "workload.name=mlp", "workload.workers of arm a is 2"),
        (ONE, OTHER, "workload.name is "),
    ],
    ids=str,
)
def test_arms_share_a_process_but_for_what_it_has_once_or_what_disturbs_the_turns_of_others(
    one: str, other: str, reason: str | None
) -> None:
    two, alone = arms(a=one, b=other), (("a",), ("b",))
    found = decide_grouping(Launches(), two, "a")
    assert (found.mode, found.groups) == (("apart", alone) if reason else ("interleaved", (("a", "b"),)))
    assert decide_grouping(Launches(mode="apart"), two, "a").groups == alone
    if reason is None:
        assert decide_grouping(Launches(count=3), two, "a") == found
        return
    assert re.search(reason, found.reason)
    with pytest.raises(ConfigError, match=f"launches.mode: interleaved, but {reason}"):
        decide_grouping(Launches(mode="interleaved"), two, "a")
    with pytest.raises(ConfigError, match=r"launches\.count: 3 launches per arm") as refused:
        decide_grouping(Launches(count=3), two, "a")
    assert found.reason in refused.value.hint


def test_many_arms_meet_the_baseline_in_pairs_and_their_likes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, each, said in ((2, "false", "3 arms"), (5, "true", "3 arms and 3 without communication")):
        monkeypatch.setattr(launch_plan, "MOST_ARMS", most)
        own = f"train.exposed={each}"
        three = arms(static=own, part=f"{own} {PARTITION}", window=f"{own} schedule.window=8")
        found = decide_grouping(Launches(), three, "part")
        assert found.groups == (("part", "static"), ("part", "window"))
        assert f"{said} are more than {most}" in found.reason


TURNS = {
    "local_sgd sync.inner_steps=1": 1,
    "local_sgd sync.inner_steps=5": 5,
    "local_sgd_torch sync.inner_steps=5": 5,
    "diloco sync.inner_steps=20": 20,
    "zero1": 8,
    "diloco sync.inner_steps=5 sync.overlap_steps=2": 8,
}
"""A strategy with its options, and the steps between which nothing of it is under way."""


@pytest.mark.parametrize("sync", TURNS)
def test_a_turn_ends_with_a_synchronisation(sync: str) -> None:
    name, steps = sync.split()[0], TURNS[sync]
    two = arms(static="", local=f"sync.name={sync}")
    assert decide_grouping(Launches(block=steps), two, "static").mode == "interleaved"
    if steps > 1:
        found = decide_grouping(Launches(block=steps - 1), two, "static")
        assert found.mode == "apart" and f"sync.name {name} of arm local" in found.reason
        assert f"turns of {steps} steps (launches.block, --block), not of {steps - 1}" in found.reason


def test_short_epochs_leave_too_little_between_evaluations() -> None:
    for steps, mode in ((6, "apart"), (10, "interleaved")):
        epochs = {"train.epochs": 2, "train.steps": steps, "train.warmup_steps": 0}
        two = {name: changed(config, epochs) for name, config in arms(static="", part=PARTITION).items()}
        found = decide_grouping(Launches(), two, "static")
        assert found.mode == mode and ("an epoch of arm static is 3 steps" in found.reason) == (mode == "apart")


ALL = Grouping("interleaved", "they can", (("a", "b", "c"),))
SEEDS = dict.fromkeys("abc", 5)


def planned(grouping: Grouping = ALL, blocks: int = 2, done: int = 0) -> CompareState:
    """A comparison with `a` as its baseline, of which the first arms have run."""
    runs = {index: f"r{index}" for index in range(done)}
    return plan_state("demo", "a", grouping, blocks, SEEDS).with_runs(runs, done=True)


def arms_of(state: CompareState, launches: list[list[int]]) -> str:
    """Arm and block of all that each launch holds, launch by launch."""
    named = [f"{one.arm}{one.block}" for one in state.launches]
    return ", ".join(" ".join(named[index] for index in members) for members in launches)


def test_runs_of_an_arm_come_by_block_and_what_ended_early_is_missing_but_named(tmp_path: Path) -> None:
    state = planned(apart(["a", "b"], "asked for"), done=1).with_runs({1: "r1"}, done=False)
    assert {f"{one.arm}{one.block}": one.seed for one in state.launches} == {"a0": 5, "b0": 5, "b1": 6, "a1": 6}
    assert state.missing == [[1], [2], [3]] and state.launches[1].run == "r1"
    assert state.arms == {"a": ["r0"], "b": []}
    for index in (3, 2, 1):
        state = state.with_runs({index: f"r{index}"}, done=True)
    assert state.arms == {"a": ["r0", "r3"], "b": ["r1", "r2"]}
    state.write(tmp_path)
    assert read_state(tmp_path) == state


def test_a_file_that_is_broken_or_missing_is_named(tmp_path: Path) -> None:
    for text in ("", '{"recipe": 1, "baseline": "a", "launches": []}'):
        with pytest.raises(RecordError, match=STATE_FILE):
            read_state(tmp_path)
        (tmp_path / STATE_FILE).write_text(text, encoding="utf-8")


@given(st.integers(2, 6), st.integers(2, 9))
def test_every_arm_is_launched_once_per_block_at_the_same_mean_position_of_an_even_one(
    n_arms: int, blocks: int
) -> None:
    names = [f"arm{i}" for i in range(n_arms)]
    first = plan_state("r", names[0], apart(names, ""), 1, dict.fromkeys(names, 0))
    state = first.extended(blocks, dict.fromkeys(names, 0))
    order = state.launches

    assert state.launch_members == [[index] for index in range(len(order))]
    assert len({(one.arm, one.block) for one in order}) == len(order) == n_arms * blocks
    positions = {arm: [i for i, one in enumerate(order) if one.arm == arm] for arm in names}
    drift_through = len({sum(found) for found in positions.values()}) > 1
    assert drift_through == (blocks % 2 == 1)
    assert [one.block for one in order] == sorted(one.block for one in order)


def test_arms_that_share_a_launch_are_missing_until_all_are_done() -> None:
    assert planned(done=2).missing == planned().launch_members == [[0, 1, 2], [3, 4, 5]]
    assert planned(done=3).missing == [[3, 4, 5]]


def test_the_arm_that_ended_a_launch_goes_on_apart_with_a_baseline_of_its_own() -> None:
    state = planned(blocks=3, done=3)

    parted = state.regrouped(state.grouping.without("c", "a", "it ended"), SEEDS)

    assert arms_of(parted, parted.launch_members) == "a0 b0 c0, c1, a1, a1 b1, a2 b2, a2, c2"
    assert parted.arms["a"] == ["r0"] and len(parted.missing) == 6
    twice = parted.regrouped(parted.grouping.without("b", "a", "so did it"), SEEDS)
    assert twice.groups == (("a",), ("c",), ("b",))


def test_arms_that_do_not_fit_together_meet_the_baseline_in_pairs_and_then_part() -> None:
    pairs = ALL.smaller("a", "too large")
    assert pairs.groups == (("a", "b"), ("a", "c"))
    assert pairs.smaller("a", "still").groups == (("a",), ("b",), ("c",))


def test_a_baseline_that_ran_beside_one_arm_is_no_partner_of_an_arm_that_goes_on_apart() -> None:
    state = planned(Grouping("interleaved", "large", (("a", "b"), ("a", "c"))), 1, done=2)

    parted = state.regrouped(state.grouping.without("c", "a", "it ended"), SEEDS)

    assert arms_of(parted, parted.launch_members) == "a0 b0, a0, c0"
    assert arms_of(parted, parted.missing) == "a0, c0"


def exposed(settings: str = "") -> Config:
    """Settings of an arm beside its like that sends nothing."""
    return arms(one=f"train.exposed=true {settings}")["one"]


@pytest.mark.parametrize("sync", STRATEGIES)
def test_every_strategy_has_a_like_that_sends_nothing_or_says_why_not(tmp_path: Path, sync: str) -> None:
    entry = STRATEGIES[sync]
    if entry.servers or not entry.trains:
        with pytest.raises(ConfigError, match=r"train\.exposed: true, but .*(server steps by|sends nothing already)"):
            exposed(f"sync.name={sync}")
        return
    config = exposed(f"sync.name={sync} train.save_model=true train.eval_samples=64")
    one, null = with_null_arms([("with", config, {"name": "a", "replace": True})])
    assert null.is_null and null.naming == {"name": "a-null", "replace": True}
    assert set(differences(one.config, null.config)) == {"sync.communicate", "train.save_model", "train.exposed"}
    assert is_like(null.config, config) and not is_like(config, null.config) and not is_like(config, config)
    turns, several = exposed_turns(config, RunStore(tmp_path)), entry.across_steps or entry.reads("inner_steps")
    assert (turns.arms, turns.block) == ((one.name, null.name), 8 if several else 1)


def test_ranks_that_step_apart_take_turns_of_as_many_steps() -> None:
    config = exposed("sync.name=diloco sync.inner_steps=20 sync.overlap_steps=2")
    assert turn_steps(Launches(), [config]) == 20 and turn_steps(Launches(block=32), [config]) == 32
    assert turn_steps(Launches(), [config, config]) == 1, "checked where arms meet"


def test_what_cannot_take_turns_is_refused_also_where_arms_are_apart(tmp_path: Path) -> None:
    config = exposed("train.eval_every=2")
    for mode in ("apart", "auto"):
        with pytest.raises(ConfigError, match=r"train\.exposed: true, but train\.eval_every of arm a is 2 steps"):
            decide_grouping(Launches(mode=mode), {"a": config, "b": exposed()}, "b")
    with pytest.raises(ConfigError, match=r"train\.exposed: true, but train\.eval_every"):
        exposed_turns(config, RunStore(tmp_path))


def test_a_rank_that_torchrun_started_launches_no_two_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "started_as_rank", lambda _: True)
    monkeypatch.setattr(attach, "join_training", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(UsageError, match=r"train\.exposed: true launches two arms"):
        run_training(exposed(), RunStore(tmp_path))


def test_a_probe_is_wanted_on_gpus_but_for_capacities_that_are_given_and_several_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of modes and of `probe.run`: see below."""
    asked = {"", "schedule.capacity=8", "launch.device=cpu", "launch.nnodes=2 launch.rdzv_endpoint=a:1"}
    configs = {more: load_config(None, f"schedule.mode=dynamic {more}".split()) for more in asked}
    for machine, wanting in (("cuda", {""}), ("cpu", set())):
        monkeypatch.setattr(training, "this_machine", partial(MACHINES.__getitem__, machine))
        assert {more for more, config in configs.items() if training.wants_probe(config)} == wanting


MACHINES = {
    "cpu": Machine(cores=4, gpus=0, bf16=False),
    "cuda": Machine(cores=4, gpus=2, bf16=True, gpu_names=("A", "A")),
}
ON = {"cpu": {}, "cuda": {"device": "cuda", "device_name": "A", "precision": "bf16", "pad_to_multiple_of": 8}}
HEAD = "description: arms\nquestion: levers\nlaunches: {mode: apart}\n"
SETTINGS = "settings: {train: {steps: 6, global_batch: 8}, launch: {launcher: torchrun, nproc: 2, device: %s}}\n"


@dataclass
class Desk:
    """Comparisons on CPU or GPUs, of which probes and launches are stood in for.

    Attributes:
        interrupted: number of the probe, from 0, that is interrupted.
        probed: the configurations that were probed; every probe is a run named p0, p1, …
    """

    store: RunStore
    folder: Path
    device: str
    training: FakeTraining = field(default_factory=FakeTraining)
    interrupted: int | None = None
    probed: list[Config] = field(default_factory=list)

    def start(self, **arms: str) -> Run:
        """Of a recipe of these arms, each with its settings as YAML."""
        lines = [f"  - {{name: {name}, set: {{{settings}}}}}\n" for name, settings in arms.items()]
        path = self.folder / "demo.yaml"
        path.write_text(f"{HEAD}{SETTINGS % self.device}arms:\n{''.join(lines)}")
        return start_comparison(load_recipe(path), self.store)

    def go_on(self, comparison: Run, launches: int) -> dict[str, str | None]:
        """Arm to the name of its probe, of so many further launches before one fails."""
        begun = len(self.training.calls)
        self.training.fail_at = begun + launches
        with pytest.raises(WorkerFailed, match="rank 1 died"):
            run_comparison(comparison, self.store)
        found = {}
        for name, _, _ in self.training.calls[begun : begun + launches]:
            reference = self.store.resolve(name).config().probe.run
            named = reference in (None, "auto", "off")
            found[name.rsplit("-", 2)[0]] = reference if named else self.store.resolve(reference).name
        return found

    def probe(self, config: Config, store: RunStore, *, report: Callable[[str], None]) -> Run:
        self.probed.append(config)
        number = len(self.probed) - 1
        if number == self.interrupted:
            raise Interrupted("stopped", signum=15)
        return make_probe(store, name=f"p{number}", **ON[self.device])


@pytest.fixture(params=MACHINES)
def desk(request: pytest.FixtureRequest, store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk(store, tmp_path, request.param)
    for module in (training, preflight, fake_training):
        monkeypatch.setattr(module, "this_machine", lambda: MACHINES[request.param])
    monkeypatch.setattr(training, "run_probe", made.probe)
    monkeypatch.setattr(launches, "run_arms", made.training)
    return made


MODES = ("static", "dynamic")
ASKED = {"off": "probe.run: 'off'", "null": "probe.run: null", "auto": "probe.run: auto", "named": "probe.run: mine"}
AUTO = "schedule.mode: dynamic, probe.run: auto"


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["auto-static", "off-dynamic", "null-static"])
def test_every_arm_gets_what_it_asks_for_also_when_it_is_gone_on_with(desk: Desk, baseline: str) -> None:
    make_probe(desk.store, name="mine", **ON[desk.device])
    arms = {f"{asked}-{mode}": f"schedule.mode: {mode}, {ASKED[asked]}" for asked in ASKED for mode in MODES}

    comparison = desk.start(**{baseline: arms.pop(baseline), **arms})
    probes = desk.go_on(comparison, 8)

    wanting = {"auto-static", "auto-dynamic"} | ({"null-dynamic"} if desk.device == "cuda" else set())
    given = {name: {"off": "off", "named": "mine"}.get(name.partition("-")[0]) for name in (baseline, *arms)}
    assert probes == given | dict.fromkeys(wanting, "p0")
    assert read_state(comparison.path).probes == dict.fromkeys(wanting, desk.store.resolve("p0").id)
    assert probes | desk.go_on(comparison, 7) == probes and len(desk.probed) == 1


OF_SPLITS = ("sync.bucket_mb=5.0", "compress.error_feedback=false")
SAME = ("schedule.window=4", "analysis.noise_threshold=0.1", "train.eval_samples=0", *OF_SPLITS)
UNLIKE = ("launch.slowdown={1: 2.0}", "probe.margin=0.3", "launch.nproc=2", "sync.name=fsdp", "sync.name=bucketed")
"""What matters to a probe where a further micro-batch is timed; of what it means the same else, and what is another."""


@pytest.mark.parametrize("device", MACHINES)
def test_a_probe_means_the_same_for_arms_of_like_workers_parts_and_splits(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    def identity(*settings: str, with_splits: bool = False) -> tuple[object, ...]:
        given = ["launch.launcher=torchrun", f"launch.device={device}", "launch.nproc=3", "train.global_batch=66"]
        return training.probe_identity(load_config(None, [*given, *settings]), store, with_splits=with_splits)

    machine = replace(MACHINES[device], gpus=3 * (device == "cuda"), gpu_names=("A",) * 3)
    monkeypatch.setattr(training, "this_machine", lambda: machine)
    alone = identity()
    assert {identity(each) for each in SAME} == {alone}
    assert (identity("train.precision=fp32") == alone) == (device == "cpu"), "what auto means"
    assert len({alone, *map(identity, UNLIKE)}) == 1 + len(UNLIKE)
    assert identity("sync.name=zero1") == identity("sync.name=zero1", "sync.bucket_mb=5.0") != alone
    assert identity("sync.name=fsdp") != identity("sync.name=fsdp", "sync.reshard=false")
    assert len({identity(*each, with_splits=True) for each in ((), *zip(OF_SPLITS))}) == 1 + len(OF_SPLITS)
    monkeypatch.setitem(STRATEGIES.entries, "ddp", replace(STRATEGIES["ddp"], servers=1))
    served = identity()
    assert (alone[0], served[0]) == (3, 2) and alone != served


def test_where_an_arm_splits_what_is_synchronised_counts(desk: Desk) -> None:
    comparison = desk.start(a=AUTO, b=f"{AUTO}, schedule.micro_batches: auto", c=f"{AUTO}, sync.bucket_mb: 5.0")
    assert desk.go_on(comparison, 3) == {"a": "p0", "b": "p0", "c": "p1"}


def test_a_probe_that_was_made_before_another_failed_is_kept(desk: Desk) -> None:
    desk.interrupted = 1
    comparison = desk.start(a=AUTO, b=f"{AUTO}, probe.margin: 0.3")
    with pytest.raises(Interrupted):
        run_comparison(comparison, desk.store)
    assert desk.go_on(comparison, 2) == {"a": "p0", "b": "p2"}


def test_an_arm_that_may_not_use_its_probe_is_refused_first(desk: Desk) -> None:
    mine = make_probe(desk.store, "workload.size=base", name="mine", **ON[desk.device])
    unlike = r"workload.size: 'small', but {} .* was made with 'base'"
    refused = {f"{key}: mine": unlike.format(key) for key in ("probe.run", "schedule.capacity")}
    for setting, said in {**refused, "probe.run: gone": "gone"}.items():
        with pytest.raises(DynbenchError, match=said):
            desk.start(a="probe.run: auto", b=setting)
        assert (desk.store.list(), desk.probed) == ([mine], [])


def test_no_cell_is_registered_when_a_later_one_may_not_use_its_probe(store: RunStore, tmp_path: Path) -> None:
    make_probe(store, name="mine")
    path = tmp_path / "cells.yaml"
    arms = "arms:\n  - {name: a}\n  - {name: b, set: {schedule.mode: dynamic, probe.run: mine}}\n"
    cells = "cells:\n  - {workload.size: small}\n  - {workload.size: base}\n"
    path.write_text(f"description: cells\n{SETTINGS % 'cpu'}{arms}{cells}")
    with pytest.raises(ConfigError, match=r"workload.size: 'base'"):
        start_cells(load_cells(path), store)
    assert [each.name for each in store.list()] == ["mine"]
