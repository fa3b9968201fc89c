"""Arms that draw their samples differently from the same data, so that single steps cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.levels import windows_agree


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding per comparison at level `stream`."""
    for comparison in evidence.comparisons:
        if comparison.level != "stream" or comparison.forbidden:
            continue
        arms = f"{comparison.baseline.label} and {comparison.candidate.label}"
        names: dict[str, object] = {"baseline": comparison.baseline.label, "candidate": comparison.candidate.label}
        pairs = comparison.pairing.pairs
        if all(windows_agree(*pair) for pair in pairs):
            facts = max((run.facts for pair in pairs for run in pair), key=lambda facts: facts.window)
            warmup_steps = _whole(facts.number("train.warmup_steps"), facts.window)
            steps = _whole(facts.steps, facts.window)
            yield Finding(
                "info",
                f"{arms} compute the same samples per window of {facts.window} steps, but the measured steps split one",
                "level step or window",
                f"Let the measured steps be whole windows: --warmup-steps {warmup_steps} --steps {steps}, within one "
                "epoch.",
                values={**names, "window": facts.window, "warmup_steps": warmup_steps, "steps": steps},
                cases=dict.fromkeys(("seen", "hint"), "split"),
            )
        else:
            yield Finding(
                "info",
                f"{arms} compute different samples per step",
                "level step or window",
                "The effect is time per real token; over few steps the samples drawn add to the noise.",
                values=names,
                cases=dict.fromkeys(("seen", "hint"), "samples"),
            )


def _whole(steps: int, window: int) -> int:
    return -(-steps // window) * window
