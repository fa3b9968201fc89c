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
            setting, number = _remedy(ranks, threads, cores)
            yield Finding(
                "warn",
                f"{run.label}: {ranks} ranks with {threads} thread{'s' if threads > 1 else ''} each",
                f"{cores} cores",
                f"Use --{setting} {number}.",
                values={"run": run.label, "ranks": ranks, "threads": threads, "cores": cores, "number": number},
                cases={"hint": setting},
            )
            return


def _remedy(ranks: int, threads: int, cores: int) -> tuple[str, int]:
    """The option to set, and to what."""
    if ranks > cores or threads == 1:
        return "nproc", max(1, cores // threads)
    return "threads", cores // ranks
