"""What a question is: in what its arms may differ, and what is measured of them (`questions` has them all)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dynbench.config.ranks import Ranks
from dynbench.config.schema import Config
from dynbench.runs.phrase import Phrase

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

EVALUATION = ("eval.loss", "eval.accuracy", "eval.perplexity")
"""Keys of the metrics of a trained model; a run has some of them."""

BATCH = "train.global_batch"
DEVICES = "env.devices"

COUNTS = ("world_size", "workers", "launch.nproc", "launch.world_size", "launch.nnodes")
"""Keys that say how many ranks there are, and how many of them train."""

TRAINED_ON = ("measured_samples", "warmup_samples")
"""Keys of how many samples arms are measured on, and warm up on. They restate settings: they forbid nothing unless a
question is about them."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What is counted as work.

    Attributes:
        name: one of it, as records and texts say it.
        column: column of the step table that counts it.
        rate: so many of it in a second, in words.
    """

    name: Phrase
    column: str
    rate: Phrase


TOKENS = Unit(Phrase.of("unit.tokens"), "real_tokens", Phrase.of("rate.tokens"))
SAMPLES = Unit(Phrase.of("unit.samples"), "global_batch", Phrase.of("rate.samples"))


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a comparison asks.

    Attributes:
        name: as it is named on a command line, in recipes and records.
        description: one line.
        asks: sections and keys of which one that differs raises the question.
        follows: further ones that may differ with them, as they are decided by them.
        same_samples: it names numbers of samples that differ, which forbid nothing of other questions.
        grown: further keys that may differ, of differences that fit each other.
        named_only: it is never found from what differs; who means it names it.
        unit: times are seconds per one of it.
        loss_drift: part by which the mean training loss of an arm may differ from the baseline's; None where the arms
            promise the same training, so that every step's loss has to agree (`analysis.loss_tolerance`).
        plans: the arms differ in plans, so that the bound on plans, predictions and plans made offline say something.
        metrics: keys of the metrics shown, in order; empty shows all.
        overview: keys of the metrics that are columns beside the verdicts, where there are many arms.
        figures: figures of training runs that are drawn, in order; empty draws all.
        columns: columns of the report's table of comparisons between the interval and the number of launches.
        template: name of the report's template, `report/<template>.<language>.md`.
        chapters: chapters that the template places, in order; their texts are in its front matter.
    """

    name: str
    description: str
    asks: tuple[str, ...]
    follows: tuple[str, ...] = ()
    same_samples: bool = False
    grown: Callable[[Differences], set[str]] = lambda _: set()
    named_only: bool = False
    unit: Unit = TOKENS
    loss_drift: float | None = None
    plans: bool = False
    metrics: tuple[str, ...] = ()
    overview: tuple[str, ...]
    figures: tuple[str, ...] = ("time_breakdown", "step_time_distribution", "timeline", "step_time")
    columns: tuple[str, ...] = ("saved",)
    template: str = "arms"
    chapters: tuple[str, ...] = ("time",)

    def of_samples(self) -> Question:
        """What is asked where samples have no lengths: work is counted in samples."""
        metrics, overview = (
            tuple(dict.fromkeys(key.replace("_tokens_per_s", "_samples_per_s") for key in keys))
            for keys in (self.metrics, self.overview)
        )
        return replace(self, unit=SAMPLES, metrics=metrics, overview=overview)

    def raised_by(self, keys: Iterable[str]) -> bool:
        """Whether one of the keys is what it asks about."""
        return any(within(key, self.asks) for key in keys)

    def permitted(self, differences: Differences) -> set[str]:
        """The keys that may differ, of those that do."""
        listed = (*ALWAYS, *(() if self.same_samples else TRAINED_ON), *self.asks, *self.follows)
        found = {key for key in differences if within(key, listed) and not within(key, NEVER)}
        return found | self.grown(differences)

    def forbidden(self, differences: Differences) -> dict[str, tuple[object, object]]:
        """The differences because of which it cannot be answered."""
        permitted = self.permitted(differences)
        return {key: values for key, values in differences.items() if key not in permitted}


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
