"""An all-reduce against a parameter server: the steps of a server's batch, what each arm costs, and how both grow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from dynbench.analysis.measure import lookup
from dynbench.analysis.metrics import workers_of
from dynbench.analysis.record import ComparisonRecord, ScalingRecord
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.report_input import Member, ReportInput, mean_of, whole
from dynbench.units import mb

STEPS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "compute": ("Replica", ("time_ms.compute",)),
    "push": ("ParameterServer.finish", ("timed_ms.workers.push_ms",)),
    "receive": ("ParameterServer.serve", ("timed_ms.servers.receive_ms",)),
    "average": ("ParameterServer.serve", ("timed_ms.servers.average_ms",)),
    "update": ("ParameterServer.step", ("timed_ms.servers.optimizer_ms",)),
    "pull": ("ParameterServer.step", ("timed_ms.servers.send_ms", "timed_ms.workers.pull_ms")),
}
"""Step of a server's batch to the code that does it, and where a summary has its time on one side or on both."""


def served_arms(subject: ReportInput) -> list[str]:
    """Names of the arms of which a rank serves."""
    return [
        name
        for name, members in subject.arms.items()
        if any(workers_of(one.summary) != lookup(one.summary, "world_size") for one in members)
    ]


def communication_costs(subject: ReportInput) -> dict[str, dict[str, float]]:
    """What communication costs, by arm: ms, part of the step, exposed ms, MB that a worker sends, and GB/s."""
    keys = ("step_time_ms.mean", "comm_ms.mean", "exposed_comm_ms.mean", "bytes_wire.mean")
    means = {name: [mean_of(members, key) for key in keys] for name, members in subject.arms.items()}
    return {
        "time": {name: comm for name, (_, comm, _, _) in means.items() if comm is not None},
        "share": {name: comm / step for name, (step, comm, _, _) in means.items() if comm is not None and step},
        "exposed": {name: exposed for name, (_, _, exposed, _) in means.items() if exposed is not None},
        "bytes": {name: mb(sent) for name, (_, _, _, sent) in means.items() if sent is not None},
        "speed": {name: mb(sent) / comm for name, (_, comm, _, sent) in means.items() if sent and comm},
    }


def outcomes(subject: ReportInput) -> dict[str, dict[str, object]]:
    """By arm: samples per second with the speed-up, seconds of all epochs, loss with accuracy after the last one."""
    speeds = {item.candidate: item.speedup for item in subject.comparisons}
    rates = {name: mean_of(arm, "throughput_samples_per_s.mean") for name, arm in subject.arms.items()}
    epochs = {name: _epochs(members) for name, members in subject.arms.items()}
    lasts = {name: [each[-1] for each in launches] for name, launches in epochs.items()}
    losses = {name: _mean(one["eval_loss"] for one in last) for name, last in lasts.items()}
    return {
        "throughput": {name: (rate, speeds.get(name)) for name, rate in rates.items() if rate is not None},
        "training": {
            name: fmean(sum(epoch["train_s"] for epoch in each) for each in launches)
            for name, launches in epochs.items()
            if launches
        },
        "loss": {
            name: (loss, _mean(one["eval_accuracy"] for one in lasts[name]))
            for name, loss in losses.items()
            if loss is not None
        },
    }


def _epochs(members: Sequence[Member]) -> list[list[Mapping[str, float]]]:
    """Of every launch that trained whole epochs."""
    found = (member.summary.get("epochs") for member in whole(members))
    return [each for one in found if isinstance(one, Mapping) and (each := one.get("each"))]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


@dataclass(frozen=True)
class Order:
    """Whether ddp is faster than an all-reduce by hand, and this than a server, at the baseline's number of workers.

    Attributes:
        expected, found: arms in that order, and by throughput.
        against: pairs of arms of two of these kinds of which the verdict says that the second is faster.
        untold: those of which no verdict says that one is.
    """

    expected: Sequence[str]
    found: Sequence[str]
    against: Sequence[tuple[str, str]]
    untold: Sequence[tuple[str, str]]


def order_of(subject: ReportInput) -> Order | None:
    """None where all arms are of one kind."""
    served, workers = served_arms(subject), workers_of(subject.first.summary)
    rates = {
        name: rate
        for name, members in subject.arms.items()
        if workers_of(members[0].summary) == workers
        and (rate := mean_of(members, "throughput_samples_per_s.mean")) is not None
    }

    def rank(name: str) -> int:
        return 2 if name in served else 0 if name == subject.baseline else 1

    expected, found = sorted(rates, key=rank), sorted(rates, key=lambda name: -rates[name])
    if len({rank(name) for name in rates}) < 2:
        return None
    faster = _faster(subject)
    claimed = [(one, other) for one, other in combinations(expected, 2) if rank(one) < rank(other)]
    against = [pair for pair in claimed if pair[::-1] in faster]
    return Order(expected, found, against, [pair for pair in claimed if pair not in faster and pair not in against])


def _faster(subject: ReportInput) -> set[tuple[str, str]]:
    """Pairs of arms of which the verdict says that the first is faster."""
    told: Sequence[ComparisonRecord] = [*subject.comparisons, *subject.pairs]
    ahead = {(item.candidate, item.baseline) for item in told if item.verdict is Verdict.FASTER}
    return ahead | {(item.baseline, item.candidate) for item in told if item.verdict is Verdict.SLOWER}


def growth_of(subject: ReportInput) -> Iterator[tuple[ScalingRecord, ScalingRecord]]:
    """Every strategy with the fewest workers and with the most, where it has both."""
    for strategy in dict.fromkeys(one.strategy for one in subject.scaling):
        arms = [one for one in subject.scaling if one.strategy == strategy and one.comm_ms is not None]
        arms.sort(key=lambda one: one.workers)
        if arms and arms[0].workers != arms[-1].workers:
            yield arms[0], arms[-1]


def facts(subject: ReportInput) -> dict[str, object]:
    """What sentences are about."""
    return {
        "served": served_arms(subject),
        "communication_costs": communication_costs(subject),
        "outcomes": outcomes(subject),
        "order_found": order_of(subject),
        "growth": list(growth_of(subject)),
    }
