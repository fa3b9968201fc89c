"""Which settings and facts must agree before two runs may be compared, and which may be what is compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dynbench.analysis.merge import MergedRun
from dynbench.config.digest import NOT_IDENTITY
from dynbench.runs.phrase import Phrase

Differences = dict[str, tuple[object, object]]

MAY_DIFFER = (
    "schedule",
    "sync",
    "compress",
    "probe",
    "analysis",
    "train.precision",
    "train.eval_every",
    "train.eval_samples",
    "launch.slowdown",
    "launch.timeout_s",
    "launch.node_rank",
    "launch.rdzv_endpoint",
    "launch.rdzv_id",
    "workload.cache_dir",
    "workload.import_from",
)
"""Sections and keys that arms may differ in; every other key of the configuration must agree."""

NOT_IDENTITY_OF_ARM = (*NOT_IDENTITY, "analysis")
"""Keys and sections in which launches of one arm may differ."""

ENVIRONMENT = ("dynbench", "python", "cpu_model", "packages.torch", "packages.transformers", "packages.numpy")
"""Facts of env.json that must agree, where both runs know them."""

NOT_COMPARED = (
    "collected",
    "seed",
    "config_digest",
    "load_average",
    "memory_mb.available",
    "unknown",
    "environment.SLURM_JOB_ID",
    "environment.DYNBENCH_CACHE",
    "environment.DYNBENCH_RESULTS",
    "data.train_source",
    "data.eval_source",
)
"""Facts and sections of env.json that differ between equal launches: the moment, names of places and jobs, and what
restates the configuration. Every other fact is compared; one that differs is worth a warning."""

_DECISIONS = ("decisions.", "data.decisions.")


def forbidden_differences(a: MergedRun, b: MergedRun) -> Differences:
    """Keys because of which two runs cannot be compared, each with both values; empty when they can."""
    left, right = a.facts.config, b.facts.config
    found: Differences = {
        key: (left.get(key), right.get(key))
        for key in dict.fromkeys((*left, *right))
        if left.get(key) != right.get(key) and not may_differ(key)
    }
    if a.world_size != b.world_size:
        found["world_size"] = (a.world_size, b.world_size)
    for key in (*ENVIRONMENT, "data.fingerprint", "data.model.digest"):
        _add_if_different(found, f"env.{key}", fact(a.facts.env, key), fact(b.facts.env, key))
    _add_if_different(found, "env.devices", device_names(a.facts.env), device_names(b.facts.env))
    return found


def environment_differences(a: MergedRun, b: MergedRun) -> Differences:
    """Facts of env.json that differ and could move a number, `NOT_COMPARED` left out.

    A fact that only one run has differs too, as a variable that only one had set. The data of runs of different seeds
    may be another subset, and is not compared.
    """
    left, right = dict(_leaves(a.facts.env)), dict(_leaves(b.facts.env))
    left_out = NOT_COMPARED if a.facts.seed == b.facts.seed else (*NOT_COMPARED, "data")
    return {
        f"env.{key}": (left.get(key), right.get(key))
        for key in dict.fromkeys((*left, *right))
        if left.get(key) != right.get(key)
        and not any(key == listed or key.startswith(f"{listed}.") for listed in left_out)
        and not (key.startswith(_DECISIONS) and _follows_from_the_arm(key, left, right))
    }


def _follows_from_the_arm(key: str, left: Mapping[str, object], right: Mapping[str, object]) -> bool:
    """Whether a decision differs because the configurations do; one that was set in one run is in its configuration."""
    decided, _, part = key.removeprefix("data.").removeprefix("decisions.").rpartition(".")
    return part == "reason" or may_differ(decided) or key not in left or key not in right


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


def compared_settings(a: MergedRun, b: MergedRun) -> Differences:
    """The settings in which two runs differ and may, and launches of one arm do not: what the comparison is about."""
    left, right = a.facts.config, b.facts.config
    return {
        key: (left[key], right.get(key))
        for key in left
        if left[key] != right.get(key) and may_differ(key) and not _listed(key, NOT_IDENTITY_OF_ARM)
    }


def alike(pairs: Sequence[tuple[MergedRun, MergedRun]]) -> bool:
    """Whether the runs of every pair differ in nothing that is compared or forbids it: an A/A comparison."""
    return not any(compared_settings(a, b) or forbidden_differences(a, b) for a, b in pairs)


def describe(differences: Differences) -> Phrase:
    """`train.seed (0 and 1), env.cpu_model (…)` in one line."""
    return Phrase.listed(
        ", ",
        (
            Phrase(f"{key} ({a} and {b})", "difference", key=key, first=_word(a), second=_word(b))
            for key, (a, b) in differences.items()
        ),
    )


def fact(env: Mapping[str, object], key: str) -> object:
    """The value at a dotted path of env.json, None where it is unknown."""
    value: object = env
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def device_names(env: Mapping[str, object]) -> tuple[str, ...] | None:
    """Names of the ranks' accelerators in order of rank; None where there are none or they are unknown."""
    devices = fact(env, "devices.ranks")
    if not isinstance(devices, list):
        return None
    names = [device.get("name") for device in devices if isinstance(device, Mapping)]
    return tuple(str(name) for name in names) if any(names) else None


def may_differ(key: str) -> bool:
    """Whether arms may differ in this key of the configuration."""
    return _listed(key, MAY_DIFFER)


def _listed(key: str, listed: Sequence[str]) -> bool:
    return key in listed or key.partition(".")[0] in listed


def _word(value: object) -> str:
    return value if isinstance(value, Phrase) else str(value)


def _add_if_different(found: Differences, key: str, a: object, b: object) -> None:
    if a is not None and b is not None and a != b:
        found[key] = (a, b)
