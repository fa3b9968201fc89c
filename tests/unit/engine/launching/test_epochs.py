"""Epochs become steps: those of the data, the warm-up among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from probes import LAPTOP, resolved

from dynbench.config.layers import load_config, load_mapping
from dynbench.config.recipe_file import recipe_yaml, written_recipe
from dynbench.config.recipes import resolve_cells
from dynbench.config.schema import Config, changed, dump_config
from dynbench.engine.launching.resolve import resolve
from dynbench.errors import ConfigError, UsageError
from dynbench.runs.store import RunStore

MLP = ("workload.name=mlp", "train.epochs=2")
BATCH = ("train.batch_per_worker=8",)


def decided_again(config: Config) -> Config:
    return resolve(config, LAPTOP, RunStore(Path("nowhere"))).config


def test_steps_follow_from_the_samples():
    found = resolved(*MLP, "train.global_batch=100", "train.warmup_steps=10")
    train = found.config.train
    assert (train.steps, train.epochs, train.epoch_steps) == (2 * 81 - 10, 2, 81), "8,192 samples, 81 full batches"
    assert found.decisions["train.steps"]["value"] == train.steps
    assert decided_again(found.config) == found.config, "what is decided stays"


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ((*MLP, "train.warmup_steps=300"), ConfigError, "2 are 256 steps, all of them in train.warmup_steps 300"),
        (("train.epochs=1", "schedule.policy=token_budget"), UsageError, "under policy 'token_budget'"),
        ((*MLP, "train.global_batch=9000"), UsageError, "9000 is more than the 8192 samples"),
    ],
)
def test_epochs_that_are_none_are_refused(given, kind, said):
    with pytest.raises(kind) as caught:
        resolved(*given)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("both", "usual", "other"),
    [
        ("{steps: 50, epochs: 2}", "steps", "epochs"),
        ("{steps: 100, epochs: 2}", "steps", "epochs"),
        ("{global_batch: 64, batch_per_worker: 8}", "global_batch", "batch_per_worker"),
    ],
)
def test_a_file_that_says_both_is_refused(tmp_path, both, usual, other):
    path = tmp_path / "both.yaml"
    path.write_text(f"workload: {{name: mlp}}\ntrain: {both}\n")
    with pytest.raises(ConfigError, match=rf"both.yaml:2: train.{other}: given beside train.{usual}"):
        load_config(path)
    assert load_config(path, [f"train.{usual}=32"]), "the command line takes the place of the other"
    path.write_text(re.sub(rf"{other}: \d", f"{other}: null", path.read_text()))
    assert load_config(path)


@pytest.mark.parametrize(
    ("given", "changes", "said"),
    [
        (MLP, {"train.steps": 50}, "train.steps: 50, but train.epochs 2 are 246 beside the warm-up"),
        (BATCH, {"train.global_batch": 20}, "train.global_batch: 20, but train.batch_per_worker 8 on 2 workers are 16"),
    ],
)
def test_the_file_of_a_run_says_both_and_has_to_agree(tmp_path, given, changes, said):
    path, config = tmp_path / "config.yaml", resolved(*given).config
    path.write_text(dump_config(config))
    assert load_config(path) == config
    path.write_text(dump_config(changed(config, changes)))
    with pytest.raises(ConfigError, match=said):
        decided_again(load_config(path))


RECIPE = """\
description: two arms
settings:
  train: {steps: 30, warmup_steps: 0}
arms:
  - name: short
  - name: long
    set: {train.epochs: 2}
launches: 2
"""


def test_what_is_laid_over_takes_the_place_of_the_other(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)

    def lengths(*overrides: str) -> list[tuple[int, int | None]]:
        (recipe,) = resolve_cells("mine", load_mapping(path), overrides)
        return [(config.train.steps, config.train.epochs) for config in recipe.arms.values()]

    assert lengths() == [(30, None), (100, 2)]
    assert lengths("train.epochs=5") == [(100, 5), (100, 5)]
    assert lengths("train.steps=7") == [(7, None), (7, None)]


@pytest.mark.parametrize(
    ("given", "batch"),
    [(("launch.nproc=2",), 16), (("launch.launcher=virtual", "launch.world_size=3"), 24), (("launch.nproc=12",), 96)],
)
def test_a_batch_given_for_each_worker_grows_with_their_number(given, batch):
    found = resolved(*BATCH, "workload.subset=96", *given)
    assert found.config.train.global_batch == batch == found.decisions["train.global_batch"]["value"]
    assert decided_again(found.config) == found.config


def test_a_batch_that_is_given_twice_is_refused(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(changed(Config(), {"train.global_batch": 20, "train.batch_per_worker": 8})))
    with pytest.raises(ConfigError, match=r"train\.batch_per_worker 8 on 2 workers are 16"):
        load_config(path, ["launch.launcher=torchrun", "launch.nproc=2"])
    with pytest.raises(ConfigError, match=r"train\.batch_per_worker 8 on \d workers are"):
        decided_again(load_config(path))
    with pytest.raises(ConfigError, match="both say how large a step is"):
        load_config(None, ["train.global_batch=16", *BATCH])


@pytest.mark.parametrize("given", ["train.steps=7", "train.epochs=5", "train.global_batch=32"])
def test_a_recipe_written_with_its_options_says_the_same(tmp_path, given):
    path, written = tmp_path / "mine.yaml", tmp_path / "written.yaml"
    path.write_text(RECIPE.replace("{train.epochs: 2}", "{train.epochs: 2, train.batch_per_worker: 8}"))
    document = load_mapping(path)
    recipes = resolve_cells("mine", document, [given])
    written.write_text(recipe_yaml(written_recipe(document, [given], {}, recipes)))
    assert [each.arms for each in resolve_cells("mine", load_mapping(written))] == [each.arms for each in recipes]
