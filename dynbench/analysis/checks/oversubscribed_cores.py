"""More computing threads than cores: ranks then wait for the scheduler of the system, not for each other."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.analysis.checks.finding import Evidence, Finding
from dynbench.analysis.comparability import device_names, fact


def check(evidence: Evidence) -> Iterator[Finding]:
    """One finding for the first run with more threads on CPU than cores on its node."""
    for run in evidence.runs:
        config, cores = run.facts.config, fact(run.facts.env, "cpu_cores.usable")
        threads, ranks = config["launch.threads"], config["launch.nproc"]
        on_cpu = device_names(run.facts.env) is None
        if not (on_cpu and isinstance(cores, int) and isinstance(threads, int) and isinstance(ranks, int)):
            continue
        running = threads * (1 if run.facts.virtual else ranks)
        if running > cores:
            yield Finding(
                "warn",
                f"{run.label}: {ranks} ranks with {threads} thread{'s' if threads > 1 else ''} each",
                f"{cores} cores",
                _hint(ranks, threads, cores),
            )
            return


def _hint(ranks: int, threads: int, cores: int) -> str:
    if ranks > cores or threads == 1:
        return f"Use --nproc {max(1, cores // threads)}."
    return f"Use --threads {cores // ranks}."
