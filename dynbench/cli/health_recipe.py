"""The checks of `dynbench doctor RECIPE`: what of this machine the recipe needs, each by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dynbench.cli.diagnosis import Diagnosis, guarded, judged
from dynbench.cli.options import Settings
from dynbench.config.layers import load_mapping
from dynbench.config.paths import BPE_VOCABULARY, BYTES, TORCH_WEIGHTS, VOCABULARY, path_problems
from dynbench.config.recipes import find_recipe, resolve_cells
from dynbench.errors import ConfigError, DynbenchError, HubError
from dynbench.plugins import COMPRESSORS, DATASETS, POLICIES, STRATEGIES, WORKLOADS, options_of
from dynbench.plugins.datasets import FileOptions
from dynbench.runs import provenance

if TYPE_CHECKING:
    from dynbench.config.recipes import Recipe
    from dynbench.config.schema import Config
    from dynbench.plugins.registry import Entry

EXTRA = {"prtpy": "dynbench[peers]", "tensorboard": "dynbench[tensorboard]", "triton": "dynbench[triton]"}
"""Package to what installs it with the versions that dynbench knows."""

_TIME = re.compile(r"(?m)^# Time: (.*(?:\n#  *\S.*)*?)(?=\n# \w+:|\n(?!#))")


def recipe_checks(reference: str, settings: Settings) -> dict[str, Diagnosis]:
    """Name of a check to what it saw; where the recipe cannot be read, that alone.

    Args:
        reference: a file, or the name of a shipped recipe.
        settings: where runs are, and what `--set` lays over the recipe.

    Raises:
        UsageError: no such recipe.
    """
    file = find_recipe(reference)
    try:
        recipes = resolve_cells(file.stem, load_mapping(file), settings.overrides)
    except ConfigError as error:
        return {"recipe": _failed(error, f"Mend {file}.")}
    arms = {name: config for recipe in recipes for name, config in recipe.arms.items()}
    every = [config for recipe in recipes for config in recipe.arms.values()]
    launches = sum(recipe.launches.planned for recipe in recipes)
    seen = f"{file}: {_counted(len(recipes), 'comparison')}, {_counted(len(arms), 'arm')}, {launches} launches of each"
    weights = _tried(lambda: _weights(every))
    return {
        "recipe": Diagnosis(True, seen),
        "files": _tried(lambda: _files(every)),
        "layout": _tried(lambda: _layout(every)),
        "weights": weights,
        "packages": _packages(every),
        "ranks": _tried(lambda: _ranks(recipes, settings)),
        "start": _tried(lambda: _start(recipes, settings, weights)),
        "time": _tried(lambda: stated_time(file)),
    }


def _tried(check: Callable[[], Diagnosis]) -> Diagnosis:
    """As `guarded`; what cannot be used as a path, which `files` names, is seen by whoever meets it."""
    try:
        return guarded(check)
    except (RuntimeError, ValueError) as error:
        return Diagnosis(False, str(error), "Mend what `files` names.")


def _files(configs: Sequence[Config]) -> Diagnosis:
    """The files and folders that the arms name are there."""
    problems = list(dict.fromkeys(line for config in configs for line in path_problems(config)))
    if problems:
        return Diagnosis(False, "; ".join(problems), "Put the file there, or name another with --set KEY=PATH.")
    named = dict.fromkeys(path for config in configs for path in _named_files(config))
    return Diagnosis(True, ", ".join(named) or "none needed")


def _named_files(config: Config) -> Iterator[str]:
    if DATASETS[config.workload.dataset].of_files:
        yield from (path for _, path in options_of(config.workload, FileOptions) if path is not None)


def _layout(configs: Sequence[Config]) -> Diagnosis:
    """What is in the files and folders is what the data set reads."""
    from dynbench.workloads.inputs import check_inputs, read_files

    found = []
    for config in {config.workload.model_dump_json(): config for config in configs}.values():
        try:
            try:
                splits = check_inputs(config)
            except HubError:  # `_weights` tells what cannot be fetched
                splits = read_files(config)
        except DynbenchError as error:
            return _failed(error, "Mend the file, or name another.")
        if splits is not None:
            found.append(f"{splits.train.source}: {len(splits.train):,} samples")
    return Diagnosis(True, "; ".join(dict.fromkeys(found)) or "nothing to read before the ranks do")


def _weights(configs: Sequence[Config]) -> Diagnosis:
    """Models and tokenizers that are loaded are in a folder, in the hub's cache, or can be fetched."""
    from huggingface_hub import constants

    from dynbench.workloads.hub import CONNECT_TIMEOUT_S, why_unreachable

    names = dict.fromkeys(name for config in configs for name in _loaded(config))
    data = dict.fromkeys(name for config in configs for name in _repositories(config))
    if not names and not data:
        return Diagnosis(True, "none needed: weights are drawn, no tokenizer is loaded, no data are fetched")
    absent = [name for name in names if not Path(name).expanduser().exists() and not _is_cached(name)]
    cache = Path(constants.HF_HUB_CACHE)
    absent += [name for name in data if not (cache / f"datasets--{name.replace('/', '--')}").is_dir()]
    if not absent:
        return Diagnosis(True, f"here: {', '.join([*names, *data])}")
    offline = "HF_HUB_OFFLINE forbids the network" if constants.HF_HUB_OFFLINE else ""
    reason = offline or why_unreachable(constants.ENDPOINT, CONNECT_TIMEOUT_S)
    if reason:
        hint = "Name copies of your own: --set workload.model=FOLDER, --set workload.dataset=tsv with data_path."
        return Diagnosis(False, f"{', '.join(absent)}: neither a folder nor in the hub's cache, and {reason}", hint)
    return Diagnosis(True, f"{', '.join(absent)}: will be fetched from {constants.ENDPOINT}")


def _repositories(config: Config) -> Iterator[str]:
    """Data sets of the hub."""
    entry = DATASETS[config.workload.dataset]
    if not (entry.of_files or entry.generated or config.workload.runs_own_code) and isinstance(entry.target, str):
        yield from filter(None, [getattr(import_module(entry.target.partition(":")[0]), "REPOSITORY", None)])


def _is_cached(name: str) -> bool:
    from dynbench.workloads.hub import cached_revision

    try:
        return any(cached_revision(name, file) for file in ("config.json", "tokenizer_config.json"))
    except ValueError:  # no name of the hub
        return False


def _loaded(config: Config) -> Iterator[str]:
    """Folders and hub names that the ranks load from."""
    workload = config.workload
    if workload.runs_own_code:
        return
    if workload.reads_model:
        yield workload.model
    name = workload.tokenizer_name
    a_file = name == BYTES or name.endswith((VOCABULARY, BPE_VOCABULARY, TORCH_WEIGHTS))
    if DATASETS[workload.dataset].of_texts and not a_file:
        yield name


def _packages(configs: Sequence[Config]) -> Diagnosis:
    """Everything that the chosen plug-ins need is installed."""
    missing: dict[str, str] = {}
    for config in configs:
        for entry in _entries(config):
            if entry is not None and entry.missing is not None:
                missing[str(entry.needs)] = entry.name
        if config.train.tensorboard and find_spec("tensorboard") is None:
            missing["tensorboard"] = "train.tensorboard"
    seen = "; ".join(f"{who} needs {package}, which is not installed" for package, who in missing.items())
    hint = f"pip install {' '.join(repr(EXTRA.get(package, package)) for package in missing)}"
    return judged(not missing, seen or "all installed", hint)


def _entries(config: Config) -> Iterator[Entry | None]:
    yield WORKLOADS.get(config.workload.name)
    yield DATASETS.get(config.workload.dataset)
    yield POLICIES.get(config.schedule.policy_name)
    yield STRATEGIES.get(config.sync.name)
    yield COMPRESSORS.get(config.compress.name)


def _ranks(recipes: Sequence[Recipe], settings: Settings) -> Diagnosis:
    """The machine has what every arm's ranks ask for, and a core for each of their threads."""
    from dynbench.engine.launching.resolve import resolve, this_machine

    counts: dict[str, None] = {}
    crowded: dict[str, list[str]] = {}
    cores = provenance.usable_cores()
    for name, asked in _arms(recipes):
        try:
            config = resolve(asked, this_machine(), settings.store()).config
        except DynbenchError as error:
            return _failed(error, "Choose other ranks: --nproc, --world-size, --device.", f"arm {name}: ")
        launch = config.launch
        here = launch.nproc if isinstance(launch.nproc, int) else 1
        kind = "virtual ranks" if launch.launcher == "virtual" else f"ranks on {launch.device}"
        counts[f"{launch.world_size or here * launch.nnodes} {kind}"] = None
        threads = here * (launch.threads if isinstance(launch.threads, int) else 1)
        if launch.device == "cpu" and launch.launcher != "virtual" and threads > cores:
            crowded.setdefault(f"{here} ranks compute in {threads} threads on {cores} cores", []).append(name)
    if crowded:
        hint = (
            "They wait for a core as well as for each other, and are marked oversubscribed; use fewer (launch.nproc)."
        )
        seen = "; ".join(f"{what}: {', '.join(dict.fromkeys(arms))}" for what, arms in crowded.items())
        return Diagnosis(False, seen, hint)
    return Diagnosis(True, ", ".join(counts))


def _start(recipes: Sequence[Recipe], settings: Settings, weights: Diagnosis) -> Diagnosis:
    """A launch would begin: arms can be compared and planned, batches taken, and what they load is to be had."""
    from dynbench.experiment.preflight import check_startable

    questions: dict[str, None] = {}
    for recipe in recipes:
        try:
            questions[check_startable(recipe, settings.store()).question.name] = None
        except DynbenchError as error:
            return _failed(error, "dynbench compare RECIPE --dry-run says the same.")
    asks = f"asks: {', '.join(questions)}"
    if not weights.ok:
        return Diagnosis(False, f"would end where the ranks load what is not here (weights); {asks}", weights.hint)
    return Diagnosis(True, f"can begin; {asks}")


def stated_time(file: Path) -> Diagnosis:
    """What the recipe's file says of its time."""
    said = _TIME.search(file.read_text(encoding="utf-8"))
    if said is None:
        return Diagnosis(True, "not known before it ran once", "A first run of --steps 10 --launches 2 tells it.")
    return Diagnosis(True, f"the recipe says: {' '.join(said[1].replace(chr(10) + '#', ' ').split())}")


def _arms(recipes: Sequence[Recipe]) -> Iterator[tuple[str, Config]]:
    for recipe in recipes:
        yield from recipe.arms.items()


def _failed(error: DynbenchError, hint: str, opening: str = "") -> Diagnosis:
    return Diagnosis(False, opening + "; ".join(error.message.splitlines()), error.hint or hint)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
