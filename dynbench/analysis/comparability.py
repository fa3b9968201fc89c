"""In which settings and facts two runs differ; whether they may is for a question to say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dynbench.analysis.merge import MergedRun
from dynbench.analysis.question import ALWAYS, DEVICES, Differences, Question, with_ranks, with_samples, within
from dynbench.analysis.questions import DEFAULT, LEVERS
from dynbench.analysis.run_facts import device_names, fact, section
from dynbench.config.digest import NOT_IDENTITY
from dynbench.config.digest import differences as config_differences
from dynbench.config.ranks import Ranks
from dynbench.config.schema import Config
from dynbench.runs.phrase import Phrase

NOT_IDENTITY_OF_ARM = (*NOT_IDENTITY, "analysis")
"""Keys and sections in which launches of one arm may differ."""

ENVIRONMENT = ("dynbench", "python", "cpu_model", "packages.torch", "packages.transformers", "packages.numpy")
"""Facts of env.json that must agree, where both runs know them."""

_NOT_COMPARED = (
    "collected",
    "seed",
    "config_digest",
    "plugins",
    "load_average",
    "clocks",
    "memory_mb.available",
    "ranks",
    "together.id",
    "together.runs",
    "together.arms",
    "together.seed",
    "together.launch",
    "packed_rows",
    "memory_parts",
    "unknown",
    "environment.SLURM_JOB_ID",
    "environment.DYNBENCH_CACHE",
    "environment.DYNBENCH_RESULTS",
    "data.train_source",
    "data.eval_source",
    "devices.ranks.rank",
)
"""Facts and sections of env.json that differ between equal launches: the moment, names of places and jobs, numbers of
ranks, what restates or proves the configuration, and plug-ins, of which `all_differences` compares those that both have
loaded. Every other fact is compared; one that differs is worth a warning."""

_FINGERPRINT = "data.fingerprint"
_DECISIONS = ("decisions.", "data.decisions.")
_MEASURED = {"measured.torch_threads": "launch.threads"}
"""Decisions that say what became of a setting."""


def all_differences(a: MergedRun, b: MergedRun) -> Differences:
    """Everything in which two runs differ that is compared, or could forbid it: settings, ranks, and environment."""
    settings = a.facts.config, b.facts.config
    found = with_samples(config_differences(*settings), *settings)
    for key in (*ENVIRONMENT, _FINGERPRINT, "data.model.digest"):
        _add_if_different(found, f"env.{key}", fact(a.facts.env, key), fact(b.facts.env, key))
    for name, digest in _plugins(a).items():
        _add_if_different(found, f"env.plugins.{name}", digest, _plugins(b).get(name))
    trained, others = Ranks(a.world_size, a.facts.servers), Ranks(b.world_size, b.facts.servers)
    first = (trained.servers, others.servers) if trained.workers == others.workers else (0, 0)
    names = (device_names(run.facts.env, after) for run, after in zip((a, b), first, strict=True))
    _add_if_different(found, DEVICES, *names)
    return with_ranks(found, trained, others)


def _plugins(run: MergedRun) -> Mapping[str, object]:
    """Files of plug-ins from outside that a run loaded, and their digests."""
    return section(run.facts.env, "plugins")


def launch_differences(runs: Sequence[Config]) -> Differences:
    """The settings in which launches of one arm differ, though they may not: the first's, and the first other value."""
    first, *others = runs
    found: dict[str, tuple[object, object]] = {}
    for other in others:
        found = {**config_differences(first, other), **found}
    return {key: values for key, values in found.items() if not within(key, NOT_IDENTITY_OF_ARM)}


def environment_differences(a: MergedRun, b: MergedRun, question: Question = DEFAULT) -> Differences:
    """Facts of env.json that differ and could move a number, `_NOT_COMPARED` left out.

    A fact that only one run has differs too, as a variable that only one had set. Of the data of runs of different
    seeds the fingerprint alone is compared, and that only where no other samples follow from another seed. What was
    decided may differ where the arms may.
    """
    left, right = dict(_leaves(a.facts.env)), dict(_leaves(b.facts.env))
    left_out = _NOT_COMPARED if a.facts.seed == b.facts.seed else (*_NOT_COMPARED, "data")
    may_differ = (*ALWAYS, *LEVERS.asks, *question.asks, *question.follows)
    found = {
        f"env.{key}": (left.get(key), right.get(key))
        for key in dict.fromkeys((*left, *right))
        if left.get(key) != right.get(key)
        and not within(key, left_out)
        and not (key.startswith(_DECISIONS) and _follows_from_the_arm(key, left, right, may_differ))
    }
    if not any(_drawn_by_seed(run.facts.config) for run in (a, b)):
        _add_if_different(
            found, f"env.{_FINGERPRINT}", fact(a.facts.env, _FINGERPRINT), fact(b.facts.env, _FINGERPRINT)
        )
    return found


def _drawn_by_seed(config: Config) -> bool:
    """Whether another seed may give other samples: another subset, or what code of the user's own makes of it."""
    return config.workload.subset is not None or config.workload.runs_own_code


def _follows_from_the_arm(
    key: str, left: Mapping[str, object], right: Mapping[str, object], may_differ: Sequence[str]
) -> bool:
    """Whether a decision differs because the configurations do; one that was set in one run is in its configuration."""
    decided, _, part = key.removeprefix("data.").removeprefix("decisions.").rpartition(".")
    setting = _MEASURED.get(decided, decided)
    return part == "reason" or within(setting, may_differ) or key not in left or key not in right


def _leaves(value: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted path and value of every fact; lists of mappings, as of ranks, by field, one value where all agree."""
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, list) and item and all(isinstance(part, Mapping) for part in item):
            fields = {field: [part.get(field) for part in item] for field in dict.fromkeys(f for p in item for f in p)}
            item = {field: each[0] if all(one == each[0] for one in each) else each for field, each in fields.items()}
        if isinstance(item, Mapping):
            yield from _leaves(item, f"{path}.")
        else:
            yield path, item


def compared_settings(differences: Differences, question: Question) -> Differences:
    """The settings that differ and may, and launches of one arm do not differ in: what the comparison is about."""
    permitted = question.permitted(differences)
    return {
        key: values
        for key, values in differences.items()
        if key in permitted and "." in key and not key.startswith("env.") and not within(key, NOT_IDENTITY_OF_ARM)
    }


def alike(pairs: Sequence[tuple[MergedRun, MergedRun]]) -> bool:
    """Whether the runs of every pair differ in nothing that is compared or forbids it: an A/A comparison."""
    ignored = tuple(key for key in NOT_IDENTITY_OF_ARM if within(key, ALWAYS))
    return all(within(key, ignored) for pair in pairs for key in all_differences(*pair))


def describe(differences: Differences) -> Phrase:
    """`train.seed (0 and 1), env.cpu_model (…)` in one line."""
    items = [Phrase.of("difference", key=key, first=_word(a), second=_word(b)) for key, (a, b) in differences.items()]
    return Phrase.of("list", items=items)


def _word(value: object) -> str:
    return value if isinstance(value, Phrase) else str(value)


def _add_if_different(found: dict[str, tuple[object, object]], key: str, a: object, b: object) -> None:
    if a is not None and b is not None and a != b:
        found[key] = (a, b)
