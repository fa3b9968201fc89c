"""The sections of the configuration on what is measured beside training: the probe, and statistics."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dynbench.plugins.section import Auto, NonNegativeInt, PositiveFloat, PositiveInt, Section


class Probe(Section):
    """The search for capacities and the cost model."""

    run: str | None = None
    """Probe run to use (id, prefix, name, `@latest`), `auto` to make one first, `off`; null is auto for dynamic
    scheduling on GPUs, else off."""
    lengths: tuple[PositiveInt, ...] | None = None
    """Length grid in tokens; null is 32, 64, … up to `workload.max_length`."""
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the GPU's memory that a trial may use."""
    memory_limit: str | None = None
    """Resident memory that a trial process may have on CPU, libraries included, like 2GiB; null is an equal share of
    what is available, less a reserve."""
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Part of what passed that is left unused."""
    gap: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """The search ends when the failure is within this part of the success."""
    trials: PositiveInt = 3
    """Tries of a trial whose process ended without a record."""
    repeats: PositiveInt = 5
    """Timed repeats per grid point."""
    soak_steps: NonNegativeInt = 50
    """Steps of the real plan replayed at the capacities found; 0 leaves the soak out."""


class Analysis(Section):
    """Statistics and verdicts."""

    noise_threshold: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Differences below this part count as none."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Level of the intervals."""
    loss_tolerance: PositiveFloat | Auto = "auto"
    """Largest relative difference of the global loss that still counts as parity, at level `step`; auto follows from
    the precision and the steps: 0.001, or half the precision's unit roundoff times the root of the steps compared."""
    target_perplexity: PositiveFloat | None = None
    """Evaluation perplexity to which time, steps and bytes are told; evaluate often enough (train.eval_every)."""
    time_budget_s: PositiveFloat | None = None
    """Training time, seconds, at which the perplexity is told; evaluation is off this clock."""
