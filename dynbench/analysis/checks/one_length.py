"""Training samples of a single padded length: equal counts are equal work already."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.comparability import fact
from dynbench.analysis.data_facts import read_data
from dynbench.analysis.merge import MergedRun
from dynbench.padding import padded_lengths

HINTS = {
    "alike": "There is nothing to balance: with ranks of equal speed no policy can win anything.",
    "cut": "Cutting made them alike, and there is nothing to balance; raise --max-length.",
}


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding for the first run whose samples are all as long once they are padded."""
    for run in evidence.runs:
        shortest, longest = (fact(run.facts.env, f"data.train.{end}") for end in ("shortest", "longest"))
        if not isinstance(shortest, int) or not isinstance(longest, int):
            continue
        padded = _padded(run, longest)
        if _padded(run, shortest) != padded:
            continue
        data = read_data(run.facts.env, run.facts.config)
        cut = data.train_cut is not None and data.train_cut[0] > 0
        same = shortest == longest
        yield Finding(
            "info",
            f"{run.label}: every training sample has {longest} tokens"
            if same
            else f"{run.label}: every training sample, of {shortest} to {longest} tokens, is padded to {padded}",
            "samples of different lengths",
            HINTS["cut" if cut else "alike"],
            values={"run": run.label, "shortest": shortest, "longest": longest, "padded": padded},
            cases={"seen": "length" if same else "padded", "hint": "cut" if cut else "alike"},
        )
        return


def _padded(run: MergedRun, length: int) -> int:
    multiple, positions = run.facts.config["workload.pad_to_multiple_of"], fact(run.facts.env, "data.model.positions")
    return int(
        padded_lengths(
            length,
            multiple if isinstance(multiple, int) else 1,
            positions if isinstance(positions, int) else None,
        )
    )
