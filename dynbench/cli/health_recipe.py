"""The checks of `dynbench doctor RECIPE`: what of this machine the recipe needs, each by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dynbench.cli.common import Settings
from dynbench.cli.health import Checks, Diagnosis, Trouble, expect, run_checks
from dynbench.config.layers import load_mapping
from dynbench.config.paths import BPE_VOCABULARY, BYTES, TORCH_WEIGHTS, VOCABULARY
from dynbench.config.recipes import find_recipe, resolve_cells
from dynbench.errors import DynbenchError
from dynbench.plugins import COMPRESSORS, DATASETS, POLICIES, STRATEGIES, WORKLOADS
from dynbench.runs import provenance

if TYPE_CHECKING:
    from dynbench.config.recipes import Recipe
    from dynbench.config.schema import Config

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


def check_recipe(reference: str, settings: Settings) -> dict[str, Diagnosis]:
    """Name of a check to what it saw; where the recipe cannot be read, that alone.

    Args:
        reference: a file, or the name of a shipped recipe.
        settings: where runs are, and what `--set` lays over the recipe.

    Raises:
        UsageError: no such recipe.
    """
    file = find_recipe(reference)
    recipes: list[Recipe] = []

    def read(_: Settings) -> str:
        recipes.extend(resolve_cells(file.stem, load_mapping(file), settings.overrides, paths=True))
        numbers = {"comparison": len(recipes), "arm": len({name for recipe in recipes for name in recipe.arms})}
        counts = ", ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in numbers.items())
        return f"{file}: {counts}, {sum(recipe.launches.planned for recipe in recipes)} launches of each"

    found = run_checks({"recipe": (read, f"Mend {file}.")}, settings)
    return found | (run_checks(RECIPE_CHECKS, Target(recipes, settings)) if recipes else {})


def weights(target: Target) -> str:
    """Models and tokenizers that are loaded are in a folder, in the hub's cache, or can be fetched."""
    from huggingface_hub import constants

    from dynbench.workloads.hub import CONNECT_TIMEOUT_S, why_unreachable

    names = dict.fromkeys(name for _, config in target.arms for name in _loaded(config))
    repositories = (DATASETS[it.workload.dataset].repository for _, it in target.arms if not it.workload.runs_own_code)
    data = dict.fromkeys(filter(None, repositories))
    if not names and not data:
        return "none needed: weights are drawn, no tokenizer is loaded, no data are fetched"
    absent = [name for name in names if not Path(name).expanduser().exists() and not _is_cached(name)]
    cache = Path(constants.HF_HUB_CACHE)
    absent += [name for name in data if not (cache / f"datasets--{name.replace('/', '--')}").is_dir()]
    if not absent:
        return f"here: {', '.join([*names, *data])}"
    offline = "HF_HUB_OFFLINE forbids the network" if constants.HF_HUB_OFFLINE else ""
    if reason := offline or why_unreachable(constants.ENDPOINT, CONNECT_TIMEOUT_S):
        raise Trouble(f"{', '.join(absent)}: neither a folder nor in the hub's cache, and {reason}")
    return f"{', '.join(absent)}: will be fetched from {constants.ENDPOINT}"


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


def packages(target: Target) -> str:
    """Everything that the chosen plug-ins need is installed."""
    missing: dict[str, str] = {}
    for _, config in target.arms:
        entries = (
            WORKLOADS.get(config.workload.name),
            DATASETS.get(config.workload.dataset),
            POLICIES.get(config.schedule.policy_name),
            STRATEGIES.get(config.sync.name),
            COMPRESSORS.get(config.compress.name),
        )
        missing |= {
            str(entry.needs): entry.name for entry in entries if entry is not None and entry.missing is not None
        }
        if config.train.tensorboard and find_spec("tensorboard") is None:
            missing["tensorboard"] = "train.tensorboard"
    seen = "; ".join(f"{who} needs {package}, which is not installed" for package, who in missing.items())
    hint = f"pip install {' '.join(repr(EXTRA.get(package, package)) for package in missing)}"
    return expect(not missing, seen or "all installed", hint)


def ranks(target: Target) -> str:
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
    if crowded:
        raise Trouble(
            "; ".join(f"{what}: {', '.join(dict.fromkeys(arms))}" for what, arms in crowded.items()),
            "They wait for a core as well as for each other, and are marked oversubscribed; use fewer (launch.nproc).",
        )
    return ", ".join(counts)


def start(target: Target) -> str:
    """A launch would begin: arms can be compared and planned, batches taken, and what they load is to be had."""
    from dynbench.experiment.preflight import check_startable

    store = target.settings.store()
    asks = f"asks: {', '.join(dict.fromkeys(check_startable(it, store).question.name for it in target.recipes))}"
    (loads,) = run_checks({"weights": RECIPE_CHECKS["weights"]}, target).values()
    expect(loads.ok, f"would end where the ranks load what is not here (weights); {asks}", loads.hint)
    return f"can begin; {asks}"


RECIPE_CHECKS: Checks[Target] = {
    "weights": (
        weights,
        "Name copies of your own: --set workload.model=FOLDER, --set workload.dataset=tsv with data_path.",
    ),
    "packages": (packages, ""),
    "ranks": (ranks, "Choose other ranks: --nproc, --world-size, --device."),
    "start": (start, "dynbench compare RECIPE --dry-run says the same."),
}
