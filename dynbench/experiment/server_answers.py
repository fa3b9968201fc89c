"""An all-reduce against a parameter server: the steps of a server's batch, what each arm costs, and how both grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean

from dynbench.analysis.metrics import lookup, workers_of
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.answers import Speaker
from dynbench.experiment.formats import NBSP, number, percent, ratio
from dynbench.experiment.report_texts import marked
from dynbench.experiment.subject import Subject, mean_of, whole
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
COSTS: Mapping[str, str] = {
    "time": "comm_ms.mean",
    "share": "",
    "exposed": "exposed_comm_ms.mean",
    "bytes": "bytes_wire.mean",
    "speed": "",
}
"""What communication costs, in five figures, and where a summary has it; the others are of two of these."""
OWN = tuple(f"server.{what}" for what in ("names", "list", "expected", "found", "against", "untold", "fewest", "most"))
"""Placeholders that only the sentences of this module use."""


def served_arms(subject: Subject) -> list[str]:
    """Names of the arms of which a rank serves."""
    return [
        name
        for name, members in subject.arms.items()
        if any(workers_of(one.summary) != lookup(one.summary, "world_size") for one in members)
    ]




def server_sentence(speaker: Speaker) -> str:
    """What the table of a server's batch is, or that there is none."""
    arms = served_arms(speaker.subject)
    names = ", ".join(f"`{name}`" for name in arms)
    return speaker.say(f"answers.server.{'steps' if arms else 'none'}", server_names=names)


def costs(speaker: Speaker) -> str:
    """Five figures of what communication costs, each with the numbers of all arms."""
    return _listed(speaker, "answers.costs", {kind: _numbers(speaker.subject, kind) for kind in COSTS})


def _listed(speaker: Speaker, prefix: str, found: Mapping[str, Mapping[str, str]]) -> str:
    """A line per kind, with what every arm has of it."""
    lines = []
    for kind, told in found.items():
        each = (f"{marked(speaker.subject, speaker.template, name)}{NBSP}{text}" for name, text in told.items())
        if told:
            lines.append(speaker.say(f"{prefix}.{kind}", server_list=", ".join(each)))
    return speaker.bullets(lines)


def _numbers(subject: Subject, kind: str) -> dict[str, str]:
    told = {}
    for name, members in subject.arms.items():
        step, comm, sent = (mean_of(members, key) for key in ("step_time_ms.mean", COSTS["time"], COSTS["bytes"]))
        text: str | None
        match kind:
            case "share":
                text = percent(comm / step) if comm is not None and step else None
            case "speed":
                text = number(mb(sent) / comm) if sent and comm else None
            case "bytes":
                text = None if sent is None else number(mb(sent))
            case _:
                text = number(mean_of(members, COSTS[kind]))
        if text is not None:
            told[name] = text
    return told


def outcomes(speaker: Speaker) -> str:
    """Throughput, what came of the epochs, and how the arms at as many workers come out, in sentences."""
    subject = speaker.subject
    speeds = {item.candidate: item.speedup for item in subject.comparisons}
    rates = {name: number(mean_of(arm, "throughput_samples_per_s.mean")) for name, arm in subject.arms.items()}
    said = {
        "throughput": {
            name: f"{rate} ({ratio(speeds[name])})" if name in speeds else rate for name, rate in rates.items() if rate
        },
        "training": _each(subject, _seconds),
        "loss": _each(subject, _last),
    }
    return _listed(speaker, "answers.outcomes", said)


def order_sentence(speaker: Speaker) -> str:
    """Whether ddp is faster than an all-reduce by hand, and this than a server, at the baseline's number of workers.

    It is where the verdict on every pair of arms of two of these kinds says so.
    """
    subject = speaker.subject
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
        return ""
    faster = _faster(subject)
    claimed = [(one, other) for one, other in combinations(expected, 2) if rank(one) < rank(other)]
    against = [pair for pair in claimed if pair[::-1] in faster]
    untold = [pair for pair in claimed if pair not in faster and pair not in against]
    listed = {"server_expected": _order(expected), "server_found": _order(found)}
    listed |= {"server_against": _couples(against), "server_untold": _couples(untold)}
    return speaker.say(f"answers.order.{'not' if against else 'open' if untold else 'holds'}", **listed)


def _faster(subject: Subject) -> set[tuple[str, str]]:
    """Pairs of arms of which the verdict says that the first is faster."""
    told: Sequence[ComparisonRecord] = [*subject.comparisons, *subject.pairs]
    ahead = {(item.candidate, item.baseline) for item in told if item.verdict is Verdict.FASTER}
    return ahead | {(item.baseline, item.candidate) for item in told if item.verdict is Verdict.SLOWER}


def _couples(pairs: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"(`{one}`, `{other}`)" for one, other in pairs)


def _order(names: Sequence[str]) -> str:
    return " > ".join(f"`{name}`" for name in names)


Told = Mapping[str, object]


def _each(subject: Subject, tell: Callable[[Sequence[Told]], str | float | None]) -> dict[str, str]:
    """What a function tells of the epochs of an arm's launches, of the arms that have some."""
    found = {}
    for name, members in subject.arms.items():
        epochs = [one for member in whole(members) if isinstance(one := member.summary.get("epochs"), Mapping)]
        value = tell(epochs) if epochs else None
        if value is not None:
            found[name] = value if isinstance(value, str) else number(value) or ""
    return found


def _seconds(launches: Sequence[Told]) -> float:
    return fmean(sum(float(epoch["train_s"]) for epoch in _list(launch)) for launch in launches)


def _last(launches: Sequence[Told]) -> str | None:
    """Evaluation loss and accuracy after the last epoch."""
    lasts = [_list(launch)[-1] for launch in launches if _list(launch)]
    losses = [one["eval_loss"] for one in lasts if one["eval_loss"] is not None]
    right = [one["eval_accuracy"] for one in lasts if one["eval_accuracy"] is not None]
    if not losses:
        return None
    said = number(fmean(losses)) or ""
    return f"{said} ({percent(fmean(right))})" if right else said


def _list(launch: Told) -> Sequence[Mapping[str, float]]:
    each = launch.get("each")
    return each if isinstance(each, list) else []


def growth_sentences(speaker: Speaker) -> Iterator[str]:
    """How much longer a step is with the most workers than with the fewest, of every strategy that has both."""
    for strategy in dict.fromkeys(one.strategy for one in speaker.subject.scaling):
        arms = [one for one in speaker.subject.scaling if one.strategy == strategy and one.comm_ms is not None]
        arms.sort(key=lambda one: one.workers)
        if len(arms) > 1 and arms[0].workers != arms[-1].workers:
            first, last = arms[0], arms[-1]
            yield speaker.say(
                "answers.server.grows",
                server_names=f"`{strategy}`",
                server_list=f"{number(first.comm_ms)} → {number(last.comm_ms)}",
                server_fewest=marked(speaker.subject, speaker.template, first.arm),
                server_most=marked(speaker.subject, speaker.template, last.arm),
            )


def sentences(speaker: Speaker) -> dict[str, str]:
    """Placeholders of the sentences."""
    return {
        "say.server": server_sentence(speaker),
        "say.costs": costs(speaker),
        "say.outcomes": outcomes(speaker),
        "say.order_found": order_sentence(speaker),
        "say.growth": speaker.bullets(list(growth_sentences(speaker))),
    }
