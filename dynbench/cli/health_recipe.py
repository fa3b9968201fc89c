"""The checks of `dynbench doctor RECIPE`: what of this machine the recipe needs, each by itself.

Adding one: a function from a `Target` to a `Diagnosis`, and one line in `RECIPE_CHECKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dynbench.cli.health import Diagnosis, guarded, judged
from dynbench.cli.options import Settings
from dynbench.config.layers import load_mapping
from dynbench.config.paths import BPE_VOCABULARY, BYTES, TORCH_WEIGHTS, VOCABULARY
from dynbench.config.recipes import find_recipe, resolve_cells
from dynbench.errors import DynbenchError
from dynbench.plugins import COMPRESSORS, DATASETS, POLICIES, STRATEGIES, WORKLOADS
from dynbench.runs import provenance

if TYPE_CHECKING:
    from dynbench.config.recipes import Recipe
    from dynbench.config.schema import Config
    from dynbench.plugins.registry import Entry

EXTRA = {"prtpy": "dynbench[peers]", "tensorboard": "dynbench[tensorboard]", "triton": "dynbench[triton]"}
"""Package to what installs it with the versions that dynbench knows."""


@dataclass(frozen=True)
class Target:
    """What is checked.

    Attributes:
        recipes: the comparisons of the recipe.
        settings: where runs are.
    """

    recipes: Sequence[Recipe]
    settings: Settings

    @property
    def arms(self) -> list[tuple[str, Config]]:
        """Name and configuration of the arms of all comparisons."""
        return [arm for recipe in self.recipes for arm in recipe.arms.items()]


Check = Callable[[Target], Diagnosis]


def recipe_checks(reference: str, settings: Settings) -> dict[str, Diagnosis]:
    """Name of a check to what it saw; where the recipe cannot be read, that alone.

    Args:
        reference: a file, or the name of a shipped recipe.
        settings: where runs are, and what `--set` lays over the recipe.

    Raises:
        UsageError: no such recipe.
    """
    file = find_recipe(reference)
    recipes: list[Recipe] = []

    def read() -> Diagnosis:
        recipes.extend(resolve_cells(file.stem, load_mapping(file), settings.overrides, paths=True))
        arms = {name for recipe in recipes for name in recipe.arms}
        counts = f"{_counted(len(recipes), 'comparison')}, {_counted(len(arms), 'arm')}"
        launches = sum(recipe.launches.planned for recipe in recipes)
        return Diagnosis(True, f"{file}: {counts}, {launches} launches of each")

    found, target = {"recipe": guarded(read, f"Mend {file}.")}, Target(recipes, settings)
    further = RECIPE_CHECKS if recipes else {}
    return found | {name: guarded(partial(check, target), hint) for name, (check, hint) in further.items()}


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def weights(target: Target) -> Diagnosis:
    """Models and tokenizers that are loaded are in a folder, in the hub's cache, or can be fetched."""
    from huggingface_hub import constants

    from dynbench.workloads.hub import CONNECT_TIMEOUT_S, why_unreachable

    names = dict.fromkeys(name for _, config in target.arms for name in _loaded(config))
    data = dict.fromkeys(name for _, config in target.arms for name in _repositories(config))
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
    if not config.workload.runs_own_code:
        yield from filter(None, [DATASETS[config.workload.dataset].repository])


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


def packages(target: Target) -> Diagnosis:
    """Everything that the chosen plug-ins need is installed."""
    missing: dict[str, str] = {}
    for _, config in target.arms:
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


def ranks(target: Target) -> Diagnosis:
    """The machine has what every arm's ranks ask for, and a core for each of their threads."""
    from dynbench.engine.launching.resolve import resolve, this_machine

    counts: dict[str, None] = {}
    crowded: dict[str, list[str]] = {}
    cores = provenance.usable_cores()
    for name, wanted in target.arms:
        try:
            launch = resolve(wanted, this_machine(), target.settings.store()).config.launch
        except DynbenchError as error:
            error.message = f"arm {name}: {error.message}"
            raise
        here = launch.nproc if isinstance(launch.nproc, int) else 1
        kind = "virtual ranks" if launch.launcher == "virtual" else f"ranks on {launch.device}"
        counts[f"{launch.world_size or here * launch.nnodes} {kind}"] = None
        threads = here * (launch.threads if isinstance(launch.threads, int) else 1)
        if launch.device == "cpu" and launch.launcher != "virtual" and threads > cores:
            crowded.setdefault(f"{here} ranks compute in {threads} threads on {cores} cores", []).append(name)
    seen = "; ".join(f"{what}: {', '.join(dict.fromkeys(arms))}" for what, arms in crowded.items())
    hint = "They wait for a core as well as for each other, and are marked oversubscribed; use fewer (launch.nproc)."
    return judged(not crowded, seen or ", ".join(counts), hint)


def start(target: Target) -> Diagnosis:
    """A launch would begin: arms can be compared and planned, batches taken, and what they load is to be had."""
    from dynbench.experiment.preflight import check_startable

    store = target.settings.store()
    questions = dict.fromkeys(check_startable(recipe, store).question.name for recipe in target.recipes)
    asks = f"asks: {', '.join(questions)}"
    loads = guarded(partial(weights, target))
    if not loads.ok:
        return Diagnosis(False, f"would end where the ranks load what is not here (weights); {asks}", loads.hint)
    return Diagnosis(True, f"can begin; {asks}")


RECIPE_CHECKS: dict[str, tuple[Check, str]] = {
    "weights": (weights, ""),
    "packages": (packages, ""),
    "ranks": (ranks, "Choose other ranks: --nproc, --world-size, --device."),
    "start": (start, "dynbench compare RECIPE --dry-run says the same."),
}
"""Name to check, and the next step where an error that ends it names none."""
