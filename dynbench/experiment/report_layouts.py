"""What a layout alone changes, and which costs loss: rows without padding or fewer optimizer steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Literal

from dynbench.analysis.measure import lookup
from dynbench.analysis.stats import mean_interval
from dynbench.analysis.verdict import Verdict
from dynbench.experiment.report_input import Member, ReportInput, whole

TURNED = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
"""A verdict told of the other arm; the rest are the same of both."""
LEAST = 1e-3
"""Part of the baseline's loss that counts as none."""


@dataclass(frozen=True)
class PackedPair:
    """A packed arm against a padded one that computed the same samples in every step.

    Attributes:
        packed, padded: names of the arms.
        verdict: on the packed one.
        speedup: the padded arm's time over the packed one's, with its interval.
    """

    packed: str
    padded: str
    verdict: Verdict
    speedup: float
    interval: tuple[float, float] | None

    @property
    def changed(self) -> float:
        """By which part the packed arm's time is less or more."""
        return abs(1 - 1 / self.speedup)


def packed_pairs(subject: ReportInput) -> Iterator[PackedPair]:
    """Every packed arm against every padded one that can be compared with it, the padded ones in order."""
    for item in subject.pairs or subject.comparisons:
        padded = [_layout(subject, name) == "padded" for name in (item.baseline, item.candidate)]
        if item.level != "step" or item.verdict is Verdict.INCOMPARABLE or padded[0] == padded[1]:
            continue
        if padded[0]:
            yield PackedPair(item.candidate, item.baseline, item.verdict, item.speedup, item.interval)
        else:
            ends = None if item.interval is None else (1 / item.interval[1], 1 / item.interval[0])
            turned = TURNED.get(item.verdict, item.verdict)
            yield PackedPair(item.baseline, item.candidate, turned, 1 / item.speedup, ends)


def _layout(subject: ReportInput, arm: str) -> object:
    """Of an arm's micro-batches; records of earlier versions knew but one."""
    return next((member.summary.get("layout", "padded") for member in subject.arms.get(arm, ())), "padded")


Judgement = Literal["costs", "least", "none", "gains", "open"]

Launch = tuple[object, int]
"""Seed of a launch, and which one of that seed it is."""


@dataclass(frozen=True)
class Trained:
    """What came of an arm.

    Attributes:
        padded: whether it pads.
        batch: samples per step.
        steps: optimizer steps, those of the warm-up included.
        losses: launch to the last evaluation loss.
    """

    padded: bool
    batch: int
    steps: int
    losses: Mapping[Launch, float]

    @property
    def samples(self) -> int:
        """That it trained on."""
        return self.batch * self.steps


@dataclass(frozen=True)
class Effect:
    """A change of the evaluation loss: its mean over seeds, and its interval."""

    mean: float
    low: float
    high: float

    @property
    def interval(self) -> tuple[float, float]:
        """Low and high end."""
        return self.low, self.high

    def judged(self, margin: float) -> Judgement:
        """By the whole interval: worse by more than a margin, or by any part; no more than it; better; or not told."""
        if -margin <= self.low and self.high <= margin:
            return "none"
        if self.low > 0:
            return "costs" if self.low > margin else "least"
        return "gains" if self.high < 0 else "open"


@dataclass(frozen=True)
class Effects:
    """What fewer steps and rows without padding do to the loss, over as many samples.

    Attributes:
        samples: that every arm was trained on.
        seeds: launches of an arm.
        times: by how much the steps are fewer.
        fewer, rows: the two effects.
        margin: change of the loss that counts as none.
    """

    samples: int
    seeds: int
    times: float
    fewer: Effect
    rows: Effect
    margin: float


def steps_effects(subject: ReportInput) -> Effects | Literal["unequal", "unknown"]:
    """What each of the two does to the loss, as far as the launches tell; or why there is no telling."""
    arms = trained(subject)
    if arms is None:
        return "unknown"
    known = list(arms.values())
    if len({arm.samples for arm in known}) > 1:
        return "unequal"
    fewer = _effect((one, other) for one, other in product(known, known) if _only_fewer(one, other))
    rows = _effect((one, other) for one, other in product(known, known) if _only_rows(one, other))
    if fewer is None or rows is None:
        return "unknown"
    counts = sorted({arm.steps for arm in known})
    margin = LEAST * fmean(arms[subject.baseline].losses.values())
    return Effects(known[0].samples, len(known[0].losses), counts[-1] / counts[0], fewer, rows, margin)


def trained(subject: ReportInput) -> dict[str, Trained] | None:
    """The arms; None where a launch was not evaluated or says not what it ran."""
    found = {name: _of_arm(whole(members)) for name, members in subject.arms.items()}
    known = {name: arm for name, arm in found.items() if arm is not None}
    return known if len(known) == len(found) else None


def by_launch(members: Sequence[Member], key: str) -> dict[Launch, float] | None:
    """A number of the summaries of an arm; None where one lacks it."""
    found: dict[Launch, float] = {}
    seen: Counter[object] = Counter()
    for member in members:
        value, seed = lookup(member.summary, key), (member.config or {}).get("train.seed")
        if value is None:
            return None
        found[seed, seen[seed]] = value
        seen[seed] += 1
    return found


def _of_arm(members: Sequence[Member]) -> Trained | None:
    losses = by_launch(members, "eval.loss")
    if losses is None:
        return None
    summary = members[0].summary
    numbers = [lookup(summary, key) for key in ("global_batch", "steps", "warmup_steps")]
    batch, steps, warmup = (None if number is None else int(number) for number in numbers)
    if batch is None or steps is None or warmup is None:
        return None
    return Trained(summary.get("layout", "padded") == "padded", batch, steps + warmup, losses)


def _only_fewer(one: Trained, other: Trained) -> bool:
    return one.padded == other.padded and other.steps < one.steps


def _only_rows(one: Trained, other: Trained) -> bool:
    return one.padded and not other.padded and other.steps == one.steps


def _effect(pairs: Iterator[tuple[Trained, Trained]]) -> Effect | None:
    """By how much the second of each pair has the higher loss, launch by launch, means over the pairs.

    None without a pair, or with fewer than two launches that all of them have.
    """
    found = [{launch: after.losses[launch] - loss for launch, loss in before.losses.items() if launch in after.losses}
             for before, after in pairs]  # fmt: skip
    shared = [launch for launch in (found[0] if found else ()) if all(launch in each for each in found)]
    if len(shared) < 2:
        return None
    return Effect(*mean_interval([fmean(each[launch] for each in found) for launch in shared]))
