"""Arms that bring gradients together in different ways: what the busiest process of each does, how far losses agree.

A server exchanges its messages one after the other, with one worker after the other. In a ring every rank sends to one
neighbour and receives from the other at the same time: N - 1 times in turn for a collective of N ranks, twice that for
an all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import ceil, inf, isclose, isfinite, log
from statistics import fmean
from typing import Any, NamedTuple, cast

from dynbench.analysis.evaluations import Epoch
from dynbench.analysis.measure import Launches, lookup, ratio
from dynbench.analysis.measures import workers_of
from dynbench.analysis.rank_files import Operation
from dynbench.analysis.verdict import LEAST_TOLERANCE
from dynbench.units import mb

PEER_TO_PEER = ("send", "receive")
ALIKE = 0.1
"""Part by which two ratios differ at most that tell nothing apart."""


class Busiest(NamedTuple):
    """What the process of an arm through which most goes does in a step, means over launches.

    Attributes:
        arm: its name.
        workers, processes: ranks that train, and all.
        side: `server` or `worker`.
        messages: that it exchanges one after the other; of collectives by the formula of a ring.
        bytes: that it sends and receives.
        transfer_ms: time in which some were under way, waiting for others left out.
        step_ms: of the step.
    """

    arm: str
    workers: int
    processes: int
    side: str
    messages: float
    bytes: float
    transfer_ms: float
    step_ms: float


def busiest(launches: Launches) -> list[Busiest]:
    """Of every arm whose calls were kept and timed."""
    found = {name: [_of_launch(name, each) for each in summaries] for name, summaries in launches.items()}
    known = (cast(list[Busiest], each) for each in found.values() if each and None not in each)
    return [Busiest(*each[0][:4], *map(fmean, zip(*(one[4:] for one in each), strict=True))) for each in known]


def _of_launch(arm: str, summary: Mapping[str, Any]) -> Busiest | None:
    operations: Sequence[Operation] = summary.get("by_operation") or ()
    workers, processes = workers_of(summary) or 0, int(lookup(summary, "world_size") or 0)
    serves, step_ms = workers < processes, lookup(summary, "step_time_ms.mean")
    own = [one for one in operations if one["side"] == ("server" if serves else "worker")]
    times = [one["transfer_ms"] for one in own if one["transfer_ms"] is not None]
    transfer_ms = sum(times) if serves else lookup(summary, "comm_transfer_ms.mean")
    if not own or len(times) < len(own) or transfer_ms is None or step_ms is None:
        return None
    received = sent = sum(one["bytes"] for one in own)
    if serves:
        pushed = sum(one["bytes"] for one in operations if one["side"] == "worker")
        received = pushed * workers / (processes - workers)
    messages = sum(one["calls"] * _in_turn(one["operation"], processes) for one in own)
    return Busiest(arm, workers, processes, own[0]["side"], messages, sent + received, transfer_ms, step_ms)


def _in_turn(operation: str, ranks: int) -> int:
    """Messages that a rank exchanges one after the other in a call."""
    return 1 if operation in PEER_TO_PEER else (ranks - 1) * (2 if operation == "all_reduce" else 1)


def busiest_rows(launches: Launches) -> list[Mapping[str, object]]:
    """Rows of their table; none where no arm has a server."""
    found = busiest(launches)
    return [
        {
            **one._asdict(),
            "mb": mb(one.bytes),
            "each_ms": ratio(one.transfer_ms, one.messages),
            "share": ratio(one.transfer_ms, one.step_ms),
        }
        for one in found
        if any(other.side == "server" for other in found)
    ]


class Against(NamedTuple):
    """An arm against one of equally many workers, or a server's against one of equally many processes without.

    Attributes:
        one: the arm of which more messages follow each other at the busiest process.
        other: the other.
    """

    one: Busiest
    other: Busiest

    @property
    def longer_ms(self) -> float:
        """What a step takes more."""
        return self.one.step_ms - self.other.step_ms

    @property
    def transfer_ms(self) -> float:
        """What the busiest process transfers longer."""
        return self.one.transfer_ms - self.other.transfer_ms

    @property
    def explained(self) -> bool:
        """Whether the times in transfer differ as the steps do: the same way, by half as much to twice."""
        return self.longer_ms != 0 and 0.5 <= self.transfer_ms / self.longer_ms <= 2

    @property
    def times(self) -> Mapping[str, float]:
        """How many times the other's messages, bytes and time in transfer are."""
        keys = ("messages", "bytes", "transfer_ms")
        return {key: getattr(self.one, key) / (getattr(self.other, key) or inf) for key in keys}

    @property
    def follows(self) -> str | None:
        """Of `messages` and `bytes`, whose ratio that of the transfers is nearer to.

        None where these are no longer, or both ratios about the same.
        """
        times = self.times
        messages, sent, transfer = times["messages"], times["bytes"], times["transfer_ms"]
        if transfer <= 1 or not messages or not sent or isclose(messages, sent, rel_tol=ALIKE):
            return None
        return "messages" if abs(log(transfer / messages)) < abs(log(transfer / sent)) else "bytes"

    @property
    def servers(self) -> int | None:
        """Servers that would have to share the parameters for each to carry no more than a rank of the other arm."""
        serves = self.one.side == "server" != self.other.side and self.one.workers == self.other.workers
        return ceil(round(self.times["bytes"], 2)) if serves else None  # but for which gradients there are


def against(found: Sequence[Busiest]) -> Iterator[Against]:
    """The pairs of arms that can be held against each other."""
    for pair in combinations(found, 2):
        other, one = sorted(pair, key=lambda each: (each.messages, each.side == "server"))
        same_processes = one.processes == other.processes and one.side != other.side
        if one.workers == other.workers or same_processes:
            yield Against(one, other)


def epoch_rows(summary: Mapping[str, Any]) -> Iterator[Mapping[str, object]]:
    """Of each epoch the workers, then the servers, which receive what workers push, and send what they pull."""
    for epoch in (summary.get("epochs") or {}).get("each", ()):
        sent, served = (epoch.get(key) or {} for key in ("comm_ms", "server_comm_ms"))
        yield {**epoch, "side": "worker", "push": sent.get("push_ms"), "pull": sent.get("pull_ms")}
        if served:
            times = {"push": served.get("receive_ms"), "pull": served.get("send_ms")}
            yield {"epoch": epoch["epoch"], "side": "server", "train_s": epoch["train_s"], **times}


class Agreement(NamedTuple):
    """How far apart the losses of arms of equally many workers, or of all arms, are in any epoch of a launch.

    Differences are parts of the larger loss, and the largest of any two arms.

    Attributes:
        arms: their names.
        workers: ranks that train; None where arms differ in them.
        first: of training losses, in the first epoch, before training amplifies what rounding does.
        training: of those of all epochs.
        evaluation: of evaluation losses; None where none is known.
        pair, epoch: where `training` is.
        judgement: `same` up to what rounding makes of one training, `near` up to what is allowed, or `apart`.
    """

    arms: Sequence[str]
    workers: int | None
    first: float
    training: float
    evaluation: float | None
    pair: tuple[str, str]
    epoch: int
    judgement: str


Trained = Mapping[object, Sequence[Epoch]]
"""Launch, by what pairs it with those of other arms, to its epochs."""


def agreements(epochs: Mapping[str, Trained], workers: Mapping[str, int], allowed: float) -> Iterator[Agreement]:
    """Of the arms with each number of workers, and of all where these differ.

    Args:
        epochs: by arm.
        workers: ranks that train, by arm.
        allowed: difference that is `near`.
    """
    numbers = dict.fromkeys(workers[arm] for arm in epochs)
    groups = {number: [arm for arm in epochs if workers[arm] == number] for number in numbers}
    for number, arms in [*groups.items(), *([(None, list(epochs))] if len(groups) > 1 else [])]:
        apart = [found for pair in combinations(arms, 2) for found in _apart(epochs, pair)]
        if apart:
            training, pair, epoch, _ = max(apart, key=lambda each: each[0])
            first = max(found for found, _, at, _ in apart if at == min(each[2] for each in apart))
            known = [evaluation for *_, evaluation in apart if evaluation is not None]
            judgement = "same" if training <= LEAST_TOLERANCE else "near" if training <= allowed else "apart"
            yield Agreement(arms, number, first, training, max(known, default=None), pair, epoch, judgement)


def _apart(
    epochs: Mapping[str, Trained], pair: tuple[str, str]
) -> Iterator[tuple[float, tuple[str, str], int, float | None]]:
    """Of every epoch that both arms have in a launch: by how much their losses differ, and of their evaluations."""
    one, other = (epochs[arm] for arm in pair)
    for launch in one.keys() & other.keys():
        for a, b in zip(one[launch], other[launch], strict=False):
            training, evaluation = (_difference(a.get(key), b.get(key)) for key in ("train_loss", "eval_loss"))
            if training is not None:
                yield training, pair, a["epoch"], evaluation


def _difference(a: object, b: object) -> float | None:
    if not (isinstance(a, float | int) and isinstance(b, float | int)):
        return None
    return abs(a - b) / (max(abs(a), abs(b)) or 1.0) if isfinite(a) and isfinite(b) else inf
