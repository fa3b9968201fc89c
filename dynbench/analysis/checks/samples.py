"""What the training samples cannot show: a loss where they have one class, a gain where they have one length."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Seen
from dynbench.analysis.comparability import fact
from dynbench.analysis.data_facts import read_data
from dynbench.analysis.merge import MergedRun
from dynbench.config.image_rules import has_lengths
from dynbench.padding import padded_lengths
from dynbench.plugins import WORKLOADS


def one_class(evidence: Evidence) -> Iterator[Seen]:
    """The first run that learnt labels of one class: the loss falls to nothing whatever the model does."""
    for run in evidence.runs:
        workload = WORKLOADS.get(run.facts.config.workload.name)
        learns_labels = workload is None or workload.classes
        if learns_labels and fact(run.facts.env, "data.train.classes") == 1:
            yield Seen("warn", {"run": run.label})
            return


def one_length(evidence: Evidence) -> Iterator[Seen]:
    """The first run whose samples are all as long as they are computed: equal counts are equal work already."""
    for run in evidence.runs:
        shortest, longest = (fact(run.facts.env, f"data.train.{end}") for end in ("shortest", "longest"))
        if not has_lengths(run.facts.config) or not isinstance(shortest, int) or not isinstance(longest, int):
            continue
        padded = _padded(run, longest)
        if _padded(run, shortest) != padded:
            continue
        cut = read_data(run.facts.env).train_cut
        yield Seen(
            "info",
            {"run": run.label, "shortest": shortest, "longest": longest, "padded": padded},
            {
                "seen": "length" if shortest == longest else "padded",
                "hint": "multiple" if shortest < min(longest, padded) else "cut" if cut and cut[0] else "alike",
            },
        )
        return


def samples_see_each_other(evidence: Evidence) -> Iterator[Seen]:
    """The first run of each arm in which samples of a row see each other, as was seen before its first step."""
    for arm in evidence.arms:
        run = next((run for run in arm.runs if run.facts.leak is not None), None)
        if run is None or run.facts.leak is None:
            continue
        tolerance = fact(run.facts.env, "packed_rows.tolerance")
        yield Seen(
            "warn",
            {"run": run.label, "tolerance": tolerance, **run.facts.leak.values},
            run.facts.leak.say.removeprefix("leak."),
        )


def _padded(run: MergedRun, length: int) -> int:
    """The length as it is computed; a packed row holds real tokens only."""
    if run.facts.config.workload.layout != "padded":
        return length
    multiple, positions = run.facts.config.workload.pad_to_multiple_of, fact(run.facts.env, "data.model.positions")
    most = positions if isinstance(positions, int) else None
    return int(padded_lengths(length, multiple if isinstance(multiple, int) else 1, most))
