"""What a question is, the registry of those that a comparison can answer, and which of them is asked.

A comparison answers one question, over all its arms. Where it is not named, it is found from what differs: the one
question that is raised by a key that differs and permits all that differ of those that questions ask about. Arms that
differ in keys of two questions are refused, as nobody could say which of them made the difference, unless `levers` is
named, which asks what they give together. Strategies over more and fewer ranks are no such case: each is scaled against
itself.

Adding one: an entry of the registry; its texts are in the front matter of its template.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from dynbench.analysis.differences import (
    ALWAYS,
    BATCH,
    COUNTS,
    NEVER,
    TRAINED_ON,
    Differences,
    grown_with_batch,
    grown_with_workers,
    within,
)
from dynbench.errors import NotComparable, unknown_name
from dynbench.runs.phrase import Phrase

EVALUATION = ("eval.loss", "eval.accuracy", "eval.perplexity")
"""Keys of the metrics of a trained model; a run has some of them."""


class Unit(NamedTuple):
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
        verdicts: whether arms are alternatives to choose between; else they are conditions under which the same is
            measured, and no verdicts are shown.
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
    verdicts: bool = True

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


PACE = ("throughput_tokens_per_s.mean", "step_time_ms.mean", "step_time_ms.p50", "step_time_ms.p95")
"""Keys of the metrics that say how fast a run is."""

SCHEDULE = Question(
    name="schedule",
    description="which policy, cost, window or layout makes the slowest rank wait least",
    asks=("schedule", "workload.layout", "launch.slowdown"),
    plans=True,
    overview=(
        "waste.s",
        "padding_ratio",
        "wait_fraction",
        "exposed_comm_ms.mean",
        "plan_fraction",
        "step_length_tokens.std",
        *EVALUATION,
    ),
    figures=(),
    columns=("recovered", "saved"),
    template="template",
    chapters=(),
)
"""Who computes which samples: what the policies give back of the time spent waiting."""

SYNC = Question(
    name="sync",
    description="which gradient synchronisation leaves least communication exposed",
    asks=("sync",),
    follows=("schedule.objective",),
    metrics=(
        *PACE,
        "exposed_comm_ms.mean",
        "exposed_vs_null_ms.mean",
        "comm_ms.mean",
        "comm_sum_ms.mean",
        "comm_wait_ms.mean",
        "comm_transfer_ms.mean",
        "overlap_fraction",
        "collectives.mean",
        "bytes_wire.mean",
        "bytes_sent_ratio",
        "wait_fraction",
        "peak_mem_mb.max",
        "peak_mem_mb.servers_max",
        "loss.last",
        *EVALUATION,
    ),
    overview=(
        "exposed_comm_ms.mean",
        "comm_transfer_ms.mean",
        "overlap_fraction",
        "bytes_wire.mean",
        "wait_fraction",
        "peak_mem_mb.max",
        *EVALUATION,
    ),
    figures=(
        *("time_breakdown", "step_time_distribution", "timeline", "strategies", "loss_curves"),
        *("comm_timeline", "bucket_steps", "step_time"),
    ),
    chapters=("time", "traffic", "profile", "memory"),
)
"""Gradient synchronisation: strategies and their settings, at the same optimizer steps."""

COMPRESS = Question(
    name="compress",
    description="what sending less of the gradient saves, and what it costs in loss",
    asks=("compress",),
    loss_drift=0.05,
    metrics=(
        "compression_ratio",
        "traffic_compression_ratio",
        "comm_ratio",
        *SYNC.metrics,
        "compression.grad_rel_error",
        "compression.residual_mb",
        "targets.time_to_target_s",
        "targets.steps_to_target",
        "targets.bytes_to_target",
        "targets.perplexity_at_budget",
    ),
    overview=("compression_ratio", "traffic_compression_ratio", "bytes_wire.mean", "exposed_comm_ms.mean", *EVALUATION),
    figures=(
        "compression_loss",
        "compression_progress",
        "compression_methods",
        "compression_step",
        "compression_links",
        "compression_curves",
        "compression_fsdp",
        "time_breakdown",
        "step_time_distribution",
        "timeline",
    ),
    columns=(),
    chapters=("time", "traffic", "coding", "quality", "loss", "memory"),
)
"""What travels: compressors against the whole gradient, with the loss that they cost."""

PRECISION = Question(
    name="precision",
    description="what another precision saves in time and memory, and what it costs in loss",
    asks=("train.precision",),
    follows=("schedule.capacity", "schedule.speeds"),
    loss_drift=0.02,
    metrics=(
        *PACE,
        "peak_mem_mb.max",
        "loss.last",
        *EVALUATION,
        "exposed_comm_ms.mean",
        "bytes_wire.mean",
        "wait_fraction",
    ),
    overview=("peak_mem_mb.max", "exposed_comm_ms.mean", *EVALUATION),
    chapters=("time", "loss", "memory"),
)
"""In which arithmetic: fp32, bf16 or fp16, with the loss and the memory that go with it."""

SCALING = Question(
    name="scaling",
    description="how much faster more ranks are, and how much of each is left",
    asks=COUNTS,
    follows=(
        *(*SYNC.asks, *SYNC.follows),
        *("launch.threads", "schedule.capacity", "schedule.speeds", "schedule.buffer"),
    ),
    grown=grown_with_workers,
    metrics=(
        PACE[0],
        "throughput_samples_per_s.mean",
        *PACE[1:],
        "wait_fraction",
        "exposed_comm_ms.mean",
        "comm_ms.mean",
        "bytes_wire.mean",
        "padding_ratio",
        "peak_mem_mb.max",
    ),
    overview=("wait_fraction", "exposed_comm_ms.mean", "bytes_wire.mean", "padding_ratio", "peak_mem_mb.max"),
    figures=("scaling", "time_breakdown", "step_time_distribution", "step_time"),
    columns=("efficiency",),
    chapters=("scaling", "traffic", "profile", "time"),
)
"""Over how many ranks: the same batch over more of them (strong), or as much per rank (weak).

Arms of several strategies may be told together: each is scaled against its own arm with the fewest workers."""

LEVERS = Question(
    name="levers",
    description="what changes of schedule, synchronisation, compression and precision give together; only if named",
    asks=tuple(key for part in (SCHEDULE, SYNC, COMPRESS, PRECISION) for key in part.asks),
    named_only=True,
    loss_drift=COMPRESS.loss_drift,
    figures=("waterfall", "time_breakdown", "step_time_distribution", "timeline", "step_time"),
    overview=("waste.s", "padding_ratio", "wait_fraction", "exposed_comm_ms.mean", "bytes_wire.mean", *EVALUATION),
    chapters=("time", "traffic", "loss", "memory"),
)
"""Several at once: what they give together, not which of them gave it."""

STEPS = Question(
    name="steps",
    description="whether packing costs loss, or fewer optimizer steps over as many samples; only if named",
    asks=("schedule", "workload.layout"),
    same_samples=True,
    grown=grown_with_batch,
    named_only=True,
    overview=("throughput_tokens_per_s.mean", "padding_ratio", "wait_fraction", *EVALUATION),
    chapters=("steps", "time"),
)
"""Fewer optimizer steps over the same samples, and rows without padding: which of them costs loss."""

TOPOLOGY = Question(
    name="topology",
    description="all-reduce against a parameter server, at equal workers and over more of them; only if named",
    asks=(*SYNC.asks, *SCALING.asks),
    follows=SCALING.follows,
    grown=grown_with_workers,
    named_only=True,
    loss_drift=0.05,
    metrics=SYNC.metrics,
    overview=("step_time_ms.mean", "exposed_comm_ms.mean", "bytes_wire.mean", "wait_fraction", *EVALUATION),
    figures=("messages", "epochs", "scaling", "time_breakdown", "step_time_distribution"),
    columns=("efficiency",),
    chapters=("topology", "training", "scaling", "traffic", "profile", "time"),
)
"""Who brings gradients together, all ranks or a server among them, and how each way grows with the workers."""

BOTTLENECK = Question(
    name="bottleneck",
    description="over which links, and at how many tokens of a rank, communication is the larger part of training",
    asks=("launch.link_gbps",),
    follows=(BATCH, *COUNTS, "launch.threads"),
    metrics=SCALING.metrics,
    overview=("step_time_ms.mean", *SCALING.overview[:3]),
    figures=("communication_map", "time_breakdown", "step_time_distribution", "step_time"),
    columns=(),
    chapters=("map", "profile", "traffic", "time"),
    verdicts=False,
)
"""Over emulated links, with batches of several sizes: what waits for communication, predicted and measured."""

QUESTIONS: Mapping[str, Question] = {
    each.name: each for each in (SCHEDULE, SYNC, COMPRESS, PRECISION, SCALING, LEVERS, STEPS, TOPOLOGY, BOTTLENECK)
}
DEFAULT = SCHEDULE
"""What is asked of arms that differ in nothing that a question asks about, and what a single run is reported for."""


def question_named(name: str) -> Question:
    """The question of a name.

    Raises:
        UsageError: there is none; names the nearest.
    """
    if name not in QUESTIONS:
        raise unknown_name(f"question {name!r}: no such question", name, QUESTIONS, "There are")
    return QUESTIONS[name]


def find_question(found: Collection[Differences], named: str | None = None) -> Question:
    """The question that arms answer which differ so: as named, else as raised by what differs.

    Args:
        found: of every candidate, how it differs from the baseline.
        named: the question that is meant; None finds it.

    Raises:
        UsageError: none has that name.
    """
    if named is not None:
        return question_named(named)
    known = [question for question in QUESTIONS.values() if not question.named_only]
    raised = [question for question in known if any(question.raised_by(each) for each in found)]
    fitting = [
        question
        for question in raised
        if not any(other.raised_by(question.forbidden(each)) for each in found for other in known)
    ]
    return next(iter(fitting or raised), DEFAULT)


def not_comparable(who: str, said: str, question: Question, found: Collection[Differences], hint: str) -> NotComparable:
    """The error for arms that cannot answer a question; it names one that they could answer.

    Args:
        who: the arms, and where they are from.
        said: what forbids it, in words.
        question: as named or found.
        found: of every candidate, all in which it differs.
        hint: the next step where no question asks about all of that.
    """
    others = [other.name for other in QUESTIONS.values() if not any(other.forbidden(each) for each in found)]
    hint = f"--question {others[0]} compares arms that differ in all of that." if others else hint
    return NotComparable(f"{who} cannot be compared, they differ in {said}; the question is {question.name}", hint)
