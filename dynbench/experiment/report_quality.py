"""How good the models of the arms became: what sending less costs, and what fewer steps or rows without padding do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Literal

from dynbench.analysis.measure import lookup
from dynbench.analysis.stats import mean_interval
from dynbench.experiment.report_input import Member, ReportInput, whole

WITHIN = 0.01
"""Of the baseline's, by how much the upper end of an arm's interval may be above it."""
MEASURES = ("perplexity", "loss")
"""Keys of a summary's `eval`, of which the first that all launches have is told."""
LEAST = 1e-3
"""Part of the baseline's loss that counts as no change of it."""

Launch = tuple[object, int]
"""Seed of a launch, and which one of that seed it is."""


@dataclass(frozen=True)
class Quality:
    """How good the models of an arm became.

    Attributes:
        values: launch to its last evaluation.
        compression: bytes of gradients over bytes sent, mean over launches; None where it is not known.
        change: relative change against the baseline's of the same seed, mean and interval; None of the baseline, of
            what does as the baseline does, and of fewer than two launches.
    """

    values: Mapping[Launch, float]
    compression: float | None
    change: tuple[float, float, float] | None

    @property
    def judgement(self) -> Literal["within", "beyond", "open"] | None:
        """Whether the whole interval is within, or above, what is allowed."""
        if self.change is None:
            return None
        _, low, high = self.change
        return "within" if high <= WITHIN else "beyond" if low > WITHIN else "open"


def qualities(source: ReportInput) -> tuple[str | None, dict[str, Quality]]:
    """By which of `MEASURES` the arms were evaluated, and each; None and no arm where some launch was not."""
    for measure in MEASURES:
        found = {name: _by_launch(whole(members), f"eval.{measure}") for name, members in source.arms.items()}
        known = {name: values for name, values in found.items() if values}
        if len(known) == len(source.arms):
            base = known[source.baseline]
            return measure, {
                name: _quality(source.arms[name], values, None if name == source.baseline else base)
                for name, values in known.items()
            }
    return None, {}


def _quality(members: Sequence[Member], values: Mapping[Launch, float], base: Mapping[Launch, float] | None) -> Quality:
    ratios = [value for one in whole(members) if (value := lookup(one.summary, "compression_ratio")) is not None]
    pairs = [values[launch] / before - 1 for launch, before in (base or {}).items() if launch in values and before]
    known = len(pairs) > 1 and not never_compressed(members)
    return Quality(values, fmean(ratios) if ratios else None, mean_interval(pairs) if known else None)


def never_compressed(members: Sequence[Member]) -> bool:
    """Whether an arm's compressor starts after its last step, so that it trains as it would without."""
    first = next(iter(whole(members)), None)
    if first is None:
        return False
    start, steps = (first.config or {}).get("compress.start_step"), lookup(first.summary, "steps")
    ran = None if steps is None else steps + (lookup(first.summary, "warmup_steps") or 0)
    return isinstance(start, int) and ran is not None and 0 < ran <= start


def _by_launch(members: Sequence[Member], key: str) -> dict[Launch, float] | None:
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


@dataclass(frozen=True)
class Effect:
    """A change of the evaluation loss: its mean over seeds, and both ends of its interval.

    Attributes:
        margin: change of the loss that counts as none.
    """

    mean: float
    low: float
    high: float
    margin: float

    @property
    def interval(self) -> tuple[float, float]:
        """Low and high end."""
        return self.low, self.high

    @property
    def judgement(self) -> Literal["costs", "least", "none", "gains", "open"]:
        """By the whole interval: worse by more than the margin or by any part; within it; better; or not told."""
        if -self.margin <= self.low and self.high <= self.margin:
            return "none"
        if self.low > 0:
            return "costs" if self.low > self.margin else "least"
        return "gains" if self.high < 0 else "open"


@dataclass(frozen=True)
class Effects:
    """What fewer steps and rows without padding do to the loss, over as many samples.

    Attributes:
        fewer, rows: the two effects.
    """

    fewer: Effect
    rows: Effect


def steps_effects(source: ReportInput) -> Effects | Literal["unequal", "unknown"]:
    """What each of the two does to the loss, as far as the launches tell; or why there is no telling."""
    arms = trained(source)
    if arms is None:
        return "unknown"
    known = list(arms.values())
    if len({arm.batch * arm.steps for arm in known}) > 1:
        return "unequal"
    margin = LEAST * fmean(arms[source.baseline].losses.values())
    couples = list(product(known, known))
    fewer = _effect(((a, b) for a, b in couples if a.padded == b.padded and b.steps < a.steps), margin)
    rows = _effect(((a, b) for a, b in couples if a.padded and not b.padded and b.steps == a.steps), margin)
    return "unknown" if fewer is None or rows is None else Effects(fewer, rows)


def trained(source: ReportInput) -> dict[str, Trained] | None:
    """The arms; None where a launch was not evaluated or says not what it ran."""
    found: dict[str, Trained] = {}
    for name, members in source.arms.items():
        losses, summary = _by_launch(whole(members), "eval.loss"), whole(members)[0].summary
        batch, steps, warmup = (lookup(summary, key) for key in ("global_batch", "steps", "warmup_steps"))
        if losses is None or batch is None or steps is None or warmup is None:
            return None
        padded = summary.get("layout", "padded") == "padded"
        found[name] = Trained(padded, int(batch), int(steps) + int(warmup), losses)
    return found


def _effect(pairs: Iterable[tuple[Trained, Trained]], margin: float) -> Effect | None:
    """By how much the second of each pair has the higher loss, launch by launch, means over the pairs.

    None without a pair, or with fewer than two launches that all of them have.
    """
    found = [{launch: after.losses[launch] - loss for launch, loss in before.losses.items() if launch in after.losses}
             for before, after in pairs]  # fmt: skip
    shared = [launch for launch in (found[0] if found else ()) if all(launch in each for each in found)]
    if len(shared) < 2:
        return None
    return Effect(*mean_interval([fmean(each[launch] for each in found) for launch in shared]), margin)
