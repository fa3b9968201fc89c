"""How two configurations differ, as dotted keys with both values, and which keys may differ whatever the question.

Another number of ranks is a difference only if another number of them train. Where a question permits it (`questions`),
the global batch and the devices may grow with the ranks, or the batch while the number of steps shrinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynbench.config.ranks import Ranks, ranks_of
from dynbench.config.rules import known_world_size
from dynbench.config.schema import Config, differences

Differences = Mapping[str, tuple[object, object]]
"""Dotted key, of the configuration, of `env`, `world_size` or `workers`, to the two values that differ."""

ALWAYS = (
    "probe",
    "analysis",
    "train.eval_every",
    "train.eval_samples",
    "train.profile_steps",
    "train.memory_parts",
    "train.exposed",
    "launch.timeout_s",
    "launch.node_rank",
    "launch.rdzv_endpoint",
    "launch.rdzv_id",
    "workload.cache_dir",
    "workload.import_from",
)
"""Sections and keys that arms may differ in whatever is asked: they change nothing that is measured, or only how a
plan was prepared."""

NEVER = ("sync.communicate",)
"""Keys in which arms may not differ whatever is asked: one that trains nothing is no faster way to train."""

BATCH = "train.global_batch"
DEVICES = "env.devices"

COUNTS = ("world_size", "workers", "launch.nproc", "launch.world_size", "launch.nnodes")
"""Keys that say how many ranks there are, and how many of them train."""

TRAINED_ON = ("measured_samples", "warmup_samples")
"""Keys of how many samples arms are measured on, and warm up on. They restate settings: they forbid nothing unless a
question is about them."""


def with_ranks(found: Differences, a: Ranks, b: Ranks) -> Differences:
    """Differences with those of the ranks among them: none where as many train, however many serve them."""
    if a.workers == b.workers and a.world_size != b.world_size:
        return {key: values for key, values in found.items() if key not in COUNTS}
    if a.world_size == b.world_size:
        return found
    workers = {"workers": (a.workers, b.workers)} if a.servers or b.servers else {}
    return {**found, "world_size": (a.world_size, b.world_size), **workers}


def with_samples(found: Differences, a: Config, b: Config) -> dict[str, tuple[object, object]]:
    """Differences with those of `TRAINED_ON` among them."""
    (measured, warm), (others, others_warm) = (
        (one.steps * one.global_batch, one.warmup_steps * one.global_batch) for one in (a.train, b.train)
    )
    trained = zip(TRAINED_ON, ((measured, others), (warm, others_warm)), strict=True)
    return {**found, **{key: pair for key, pair in trained if pair[0] != pair[1]}}


def within(key: str, listed: Sequence[str]) -> bool:
    """Whether a dotted key is listed, or lies in a section that is."""
    return any(f"{key}.".startswith(f"{entry}.") for entry in listed)


def grown_with_workers(differences: Differences) -> set[str]:
    """The global batch where each worker keeps its share, and more devices where they are of one kind."""
    found = set()
    match differences.get("workers", differences.get("world_size")), differences.get(BATCH):
        case [(int() as few, int() as many), (int() as batch, int() as other)] if batch * many == other * few:
            found.add(BATCH)
    match differences.get(DEVICES):
        case [tuple() as names, tuple() as other_names] if {*names} == {*other_names}:
            found.add(DEVICES)
    return found


def grown_with_batch(differences: Differences) -> set[str]:
    """Batch and steps where steps shrink as the batch grows: as many samples are measured, and as many warm up."""
    traded = {BATCH, "train.steps", "train.warmup_steps"} & differences.keys()
    return traded if len(traded) > 1 and not {*TRAINED_ON} & differences.keys() else set()


def settings_differences(a: Config, b: Config) -> Differences:
    """How two resolved configurations differ, their numbers of ranks included."""
    found = with_samples(differences(a, b), a, b)
    one, other = known_world_size(a), known_world_size(b)
    if one is None or other is None:
        return found if one == other else {**found, "world_size": (one, other)}
    return with_ranks(found, ranks_of(a, one), ranks_of(b, other))
