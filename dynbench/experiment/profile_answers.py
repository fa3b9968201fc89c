"""Whether communication is the bottleneck, from profiled steps: tables, a line per arm, how it grows, and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dynbench.analysis.bottlenecks import Bottleneck, bottlenecks
from dynbench.experiment.answers import Speaker
from dynbench.experiment.communication_answers import launches_of
from dynbench.experiment.formats import number, percent
from dynbench.experiment.report_texts import marked

OWN = tuple(
    f"profiled.{what}"
    for what in (
        *("name", "names", "step", "share", "backward", "compute", "largest", "largest_share"),
        *("first", "last", "before", "after", "backward_before", "backward_after"),
    )
)
"""Placeholders that only the sentences of this module use."""


def bottleneck_sentences(speaker: Speaker) -> str:
    """A line per arm, one per strategy that was scaled, and whether communication takes more than computing."""
    found = {one.arm: one for one in bottlenecks(launches_of(speaker.subject))}
    if not found:
        return speaker.say("answers.bottleneck.none")
    lines = [*(_line(speaker, one) for one in found.values()), *_growth(speaker, found)]
    more = [one.arm for one in found.values() if one.share > one.compute_share]
    less = [name for name in found if name not in more]
    verdicts = [
        speaker.say(
            f"answers.bottleneck.{kind}",
            profiled_names=", ".join(marked(speaker.subject, speaker.template, name) for name in names),
        )
        for kind, names in (("is", more), ("not", less))
        if names
    ]
    return "\n\n".join([speaker.bullets(lines), *verdicts, speaker.say("answers.bottleneck.how")])


def _line(speaker: Speaker, one: Bottleneck) -> str:
    own = {
        "profiled_name": marked(speaker.subject, speaker.template, one.arm),
        "profiled_step": number(one.step_ms),
        "profiled_share": percent(one.share),
        "profiled_backward": percent(one.of_phase.get("backward", 0.0) if one.of_phase or not one.share else None),
        "profiled_compute": percent(one.compute_share),
    }
    said = speaker.say("answers.bottleneck.line", **own)
    if one.largest is None:
        return said
    operation, share = one.largest
    largest = {"profiled_largest": f"`{operation}`", "profiled_largest_share": percent(share)}
    return f"{said} {speaker.say('answers.bottleneck.largest', **largest)}"


def _growth(speaker: Speaker, found: Mapping[str, Bottleneck]) -> Iterator[str]:
    """From the fewest ranks to the most, of every strategy that has both."""
    scaled = [one for one in speaker.subject.scaling if one.arm in found]
    for strategy in dict.fromkeys(one.strategy for one in scaled):
        arms = sorted((one for one in scaled if one.strategy == strategy), key=lambda one: one.workers)
        first, last = found[arms[0].arm], found[arms[-1].arm]
        if arms[0].workers == arms[-1].workers:
            continue
        parts = [one.of_phase.get("backward") for one in (first, last)]
        yield speaker.say(
            "answers.bottleneck.grows",
            profiled_first=marked(speaker.subject, speaker.template, first.arm),
            profiled_last=marked(speaker.subject, speaker.template, last.arm),
            profiled_before=percent(first.share),
            profiled_after=percent(last.share),
            profiled_backward_before=percent(parts[0] or (0.0 if parts[1] is not None else None)),
            profiled_backward_after=percent(parts[1]),
        )
