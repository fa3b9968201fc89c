"""What sending less costs in quality: each arm's perplexity beside the baseline's, seed by seed, and who stays near."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from dynbench.analysis.measure import lookup
from dynbench.analysis.stats import mean_interval
from dynbench.experiment.report_input import Member, ReportInput, whole
from dynbench.experiment.report_layouts import Launch, by_launch

WITHIN = 0.01
"""Of the baseline's, by how much the upper end of an arm's interval may be above it."""
MEASURES = ("perplexity", "loss")
"""Keys of a summary's `eval`, of which the first that all launches have is told."""

Judgement = Literal["within", "beyond", "open"]


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
    def judgement(self) -> Judgement | None:
        """Whether the whole interval is within, or above, what is allowed."""
        if self.change is None:
            return None
        _, low, high = self.change
        return "within" if high <= WITHIN else "beyond" if low > WITHIN else "open"


@dataclass(frozen=True)
class Kept:
    """Which arms keep the quality of the baseline.

    Attributes:
        measure: what they were evaluated by, `perplexity` or `loss`.
        within, beyond, open: names of the arms by their judgement.
        best: name and quality of the one within that sends least, where that is known.
        allowed: what counts as within.
    """

    measure: str
    within: list[str]
    beyond: list[str]
    open: list[str]
    best: tuple[str, Quality] | None
    allowed: float = WITHIN


def kept_quality(subject: ReportInput) -> Kept | None:
    """Who stays near the baseline; None where no arm can be judged."""
    measure, arms = qualities(subject)
    judged = {name: arm for name, arm in arms.items() if arm.judgement}
    if measure is None or not judged:
        return None
    within, beyond, open_ = (
        [name for name in judged if judged[name].judgement == kind] for kind in ("within", "beyond", "open")
    )
    known = [(name, judged[name]) for name in within if judged[name].compression]
    return Kept(measure, within, beyond, open_, max(known, key=lambda each: each[1].compression or 0.0, default=None))


def qualities(subject: ReportInput) -> tuple[str | None, dict[str, Quality]]:
    """What is told of the arms, and of each; None and no arm where some launch was not evaluated."""
    for measure in MEASURES:
        found = {name: by_launch(whole(members), f"eval.{measure}") for name, members in subject.arms.items()}
        known = {name: values for name, values in found.items() if values}
        if len(known) == len(subject.arms):
            base = known[subject.baseline]
            return measure, {
                name: Quality(
                    values,
                    _compression(whole(subject.arms[name])),
                    _changes(base, values, name == subject.baseline or never_compressed(subject.arms[name])),
                )
                for name, values in known.items()
            }
    return None, {}


def _compression(members: Sequence[Member]) -> float | None:
    known = [value for member in members if (value := lookup(member.summary, "compression_ratio")) is not None]
    return fmean(known) if known else None


def never_compressed(members: Sequence[Member]) -> bool:
    """Whether an arm's compressor starts after its last step, so that it trains as it would without."""
    first = next(iter(whole(members)), None)
    if first is None:
        return False
    start, steps = (first.config or {}).get("compress.start_step"), lookup(first.summary, "steps")
    ran = None if steps is None else steps + (lookup(first.summary, "warmup_steps") or 0)
    return isinstance(start, int) and ran is not None and 0 < ran <= start


def _changes(
    base: Mapping[Launch, float], values: Mapping[Launch, float], is_base: bool
) -> tuple[float, float, float] | None:
    pairs = [values[launch] / before - 1 for launch, before in base.items() if launch in values and before]
    return None if is_base or len(pairs) < 2 else mean_interval(pairs)
