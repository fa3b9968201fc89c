"""What sending less costs in quality: each arm's perplexity beside the baseline's, seed by seed, and who stays near."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from dynbench.analysis.metrics import lookup
from dynbench.analysis.stats import mean_interval
from dynbench.experiment.answers import Speaker
from dynbench.experiment.formats import NBSP, number, percent
from dynbench.experiment.steps_answers import Launch, by_launch
from dynbench.experiment.subject import Member, Subject, whole

WITHIN = 0.01
"""Of the baseline's, by how much the upper end of an arm's interval may be above it."""
MEASURES = ("eval.perplexity", "eval.loss")
"""Keys of a summary, of which the first that all launches have is told."""
OWN = tuple(f"quality.{what}" for what in ("measure", "within", "names", "least", "arm", "times", "change"))
"""Placeholders that only the sentences of this module use."""

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


def quality_sentence(speaker: Speaker) -> str:
    """Which arms stay near the baseline, how little the smallest of them sends, and which arms do not."""
    measure, arms = qualities(speaker.subject)
    judged = {name: arm for name, arm in arms.items() if arm.judgement}
    if measure is None or not judged:
        return speaker.say("answers.quality.unknown")
    own = {
        "quality_measure": measure_text(speaker, measure),
        "quality_within": percent(WITHIN),
    }
    said = [
        speaker.say(f"answers.quality.{kind}", quality_names=", ".join(f"`{name}`" for name in names), **own)
        for kind in ("within", "beyond", "open")
        if (names := [name for name, arm in judged.items() if arm.judgement == kind])
    ]
    kept = {name: arm.compression for name, arm in judged.items() if arm.judgement == "within" and arm.compression}
    if kept:
        best = max(kept, key=lambda name: kept[name] or 0.0)
        change = change_of(judged[best])
        said.append(
            speaker.say(
                "answers.quality.best", quality_arm=f"`{best}`", quality_times=number(kept[best]), quality_change=change
            )
        )
    return " ".join(said)


def measure_text(speaker: Speaker, measure: str) -> str:
    """One of `MEASURES` in words."""
    return speaker.say(f"answers.quality.{measure.partition('.')[2]}")


def qualities(subject: Subject) -> tuple[str | None, dict[str, Quality]]:
    """What is told of the arms, and of each; None and no arm where some launch was not evaluated."""
    for measure in MEASURES:
        found = {name: by_launch(whole(members), measure) for name, members in subject.arms.items()}
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


def change_of(arm: Quality) -> str | None:
    """An arm's change against the baseline with its interval; None of the baseline, and of fewer than two launches."""
    if arm.change is None:
        return None
    mean, low, high = (f"{100 * value:+.2f}" for value in arm.change)
    return f"{mean}{NBSP}% [{low},{NBSP}{high}]"
