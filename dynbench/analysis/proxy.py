"""How well the planner's cost and a probe's prediction stood for what was measured.

A cost without a unit of time is held against the compute (forward and backward), brought to ms by one factor, total
compute over total cost. `measured` is in ms and is held, as it is, against what a probe's steps consist of: data,
forward, backward and optimizer. Rows are those of measured steps, one per rank and step; of more than `MOST_ROWS`,
evenly spaced ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from dynbench.analysis.merge import MergedRun
from dynbench.analysis.waste import FloatArray, relative_speeds
from dynbench.errors import RecordError
from dynbench.runs.probe_record import ProbeRecord, read_probe
from dynbench.schedule.cost import CostModel
from dynbench.units import Unit

log = logging.getLogger(__name__)

MOST_ROWS = 1_000_000
_COLUMNS = ("worker", "compute_ms", "optimizer_ms", "data_ms", "padded_tokens", "micro_batches")
_ONE_BATCH = pl.col("padded_tokens").cast(pl.Float64) ** 2 / pl.max_horizontal("local_batch", 1)
"""`padded_tokens2` of a padded micro-batch, in rows of earlier versions, which did not record it."""
STATIC = "static"
WINDOW = "window"


class ProxyError(TypedDict):
    """How far a prediction is from the time."""

    correlation: Annotated[float | None, Unit("1")]
    """Pearson's with the time; null without spread or coefficients."""
    mape: float | None
    """Mean of |predicted - time| / time."""


class Proxy(TypedDict):
    """How well a cost stood for measured time."""

    cost_type: str
    """The planner's."""
    padded_tokens: ProxyError
    """Of padded tokens."""
    cost: ProxyError
    """Of the planner's cost with its coefficients."""


def proxy_error(merged: MergedRun) -> Proxy:
    """The `proxy` object of a summary.

    Returns:
        `cost_type`, the planner's; and for `padded_tokens` and `cost` (with the planner's coefficients), over all rows:
        `correlation` (Pearson, with the time) and `mape` (mean of |predicted - time| / time), where the time is the
        compute, and for `measured` compute, optimizer and data together. None where it cannot be told: no spread,
        unknown coefficients, several micro-batches per rank under `tokens_sq`, and packed rows or several micro-batches
        in runs of earlier versions under a cost of squared lengths.
    """
    rows = (
        merged.worker_rows()
        .filter((pl.col("warmup") == 0) & (pl.col("compute_ms") > 0))
        .select(
            *(pl.col(name).cast(pl.Float64) for name in _COLUMNS),
            pl.coalesce(
                pl.col("padded_tokens2").cast(pl.Float64),
                pl.when(pl.col("layout") == "padded", pl.col("micro_batches") <= 1).then(_ONE_BATCH),
            ),
        )
        .gather_every(merged.rows // MOST_ROWS + 1)
        .collect()
    )
    columns = {name: rows[name].to_numpy() for name in rows.columns}
    speeds = relative_speeds(merged)[columns["worker"].astype(np.int64)]
    tokens, compute_ms = columns["padded_tokens"], columns["compute_ms"]
    cost = cost_model(merged)
    predicted = None if cost is None else _predicted(cost, columns)
    in_ms = cost is not None and cost.cost_type == "measured"
    time_ms = compute_ms + columns["optimizer_ms"] + columns["data_ms"] if in_ms else compute_ms
    return {
        "cost_type": merged.facts.config.schedule.cost_type,
        "padded_tokens": _error(tokens / speeds, compute_ms, scaled=True),
        "cost": _error(None if predicted is None else predicted / speeds, time_ms, scaled=not in_ms),
    }


def cost_model(merged: MergedRun) -> CostModel | None:
    """The cost that a run was planned with; None where its coefficients are not known, or it was never resolved."""
    schedule = merged.facts.config.schedule
    match schedule.cost_type:
        case "tokens" | "tokens_sq" as counted:
            return CostModel(counted)
        case "attention":
            return CostModel("attention", attention_a=schedule.attention_a)
        case "measured":
            return _measured(merged)
    return None


def _measured(merged: MergedRun) -> CostModel | None:
    schedule, probe = merged.facts.config.schedule, merged.facts.config.probe
    coefficients, further = schedule.cost_coefficients, schedule.further_ms
    if coefficients is None:
        if probe.run is None:
            return None
        try:
            fit = read_probe(merged.run.path.parent / probe.run).cost_model
        except RecordError:
            return None
        if fit is None:
            return None
        coefficients = fit.alpha_ms, fit.beta_ms_per_token, fit.gamma_ms_per_token2
        further = fit.further_ms if further is None else further
    alpha, beta, gamma = coefficients
    return CostModel("measured", alpha=alpha, beta=beta, gamma=gamma, further=further)


def _predicted(cost: CostModel, columns: dict[str, FloatArray]) -> FloatArray | None:
    """Cost of each row's share, as `schedule.evaluate` prices its plan; None where the rows do not tell it."""
    tokens, tokens2, parts = (columns[name] for name in ("padded_tokens", "padded_tokens2", "micro_batches"))
    if cost.cost_type == "tokens":
        return tokens
    told = parts <= 1 if cost.cost_type == "tokens_sq" else np.isfinite(tokens2)
    if not told.all():
        return None
    return cost.of_rank(cost.cost_packed(tokens, tokens2) + (parts - 1) * cost.alpha, parts)


def _error(predicted: FloatArray | None, time_ms: FloatArray, *, scaled: bool) -> ProxyError:
    if predicted is None or len(predicted) < 2 or not predicted.sum() > 0:
        return {"correlation": None, "mape": None}
    factor = time_ms.sum() / predicted.sum() if scaled else 1.0
    mape = float(np.mean(np.abs(factor * predicted - time_ms) / time_ms))
    spread = predicted.std() > 0 and time_ms.std() > 0
    return {"correlation": float(np.corrcoef(predicted, time_ms)[0, 1]) if spread else None, "mape": mape}


def predicted_speedup(baseline: MergedRun, candidate: MergedRun) -> float | None:
    """Speed-up of the candidate's policy over the baseline's as its probe predicted it.

    None where no probe was used, where it is gone, or where it predicted something else: other workers, another global
    batch, another window, or one micro-batch per rank where the runs may take several.
    """
    probe = _probe_of(candidate) or _probe_of(baseline)
    alike = candidate.workers, candidate.facts.config.train.global_batch
    if probe is None or (probe.world_size, probe.global_batch) != alike:
        return None
    if not (_as_predicted(baseline, probe) and _as_predicted(candidate, probe)):
        return None
    before = _over_static(probe.predicted_speedup, baseline.facts.plan_name)
    after = _over_static(probe.predicted_speedup, candidate.facts.plan_name)
    return after / before if before and after else None


def _probe_of(merged: MergedRun) -> ProbeRecord | None:
    reference = merged.facts.config.probe.run
    folder = merged.run.path.parent / str(reference)
    if reference in (None, "auto", "off") or not folder.is_dir():
        return None
    try:
        return read_probe(folder)
    except RecordError as error:
        log.warning("%s; predicted gains are left out", error.message)
        return None


def _as_predicted(merged: MergedRun, probe: ProbeRecord) -> bool:
    """Whether a run planned as the prediction did: one micro-batch per rank, and windows of as many batches."""
    facts = merged.facts
    as_many = facts.policy != WINDOW or facts.window == probe.predicted_window
    return as_many and facts.config.schedule.micro_batches == 1


def _over_static(predicted: Mapping[str, float | None], policy: str) -> float | None:
    return 1.0 if policy == STATIC else predicted.get(policy)
