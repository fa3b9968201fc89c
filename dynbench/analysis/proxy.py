"""How well the planner's cost stood for time: each rank's predicted cost against its measured time.

A cost without a unit of time is held against the compute (forward and backward), brought to ms by one factor, total
compute over total cost. `measured` is in ms and is held, as it is, against what a probe's steps consist of: data,
forward, backward and optimizer. Rows are those of measured steps, one per rank and step; of more than `MOST_ROWS`,
evenly spaced ones.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from dynbench.analysis.compute_fit import FloatArray, relative_speeds
from dynbench.analysis.merge import MergedRun
from dynbench.errors import RecordError
from dynbench.runs.probe_record import read_probe
from dynbench.schedule.cost import CostModel

ProxyError = dict[str, float | None]

MOST_ROWS = 1_000_000

_COLUMNS = ("worker", "compute_ms", "optimizer_ms", "data_ms", "padded_tokens", "local_batch", "micro_batches")


def proxy_error(merged: MergedRun) -> dict[str, ProxyError | str | None]:
    """The `proxy` object of a summary.

    Returns:
        `cost_type`, the planner's; and for `padded_tokens` and `cost` (with the planner's coefficients), over all rows:
        `correlation` (Pearson, with the time) and `mape` (mean of |predicted - time| / time), where the time is the
        compute, and for `measured` compute, optimizer and data together. None where it cannot be told: no spread,
        unknown coefficients, or, for a cost that is no sum over tokens, several micro-batches per rank, whose lengths
        are not recorded.
    """
    rows = (
        merged.worker_rows()
        .filter((pl.col("warmup") == 0) & (pl.col("compute_ms") > 0))
        .select(*(pl.col(name).cast(pl.Float64) for name in _COLUMNS))
        .gather_every(merged.rows // MOST_ROWS + 1)
        .collect()
    )
    columns = {name: rows[name].to_numpy() for name in _COLUMNS}
    speeds = relative_speeds(merged)[columns["worker"].astype(np.int64)]
    tokens, compute_ms = columns["padded_tokens"], columns["compute_ms"]
    cost = cost_model(merged)
    predicted = None if cost is None else _predicted(cost, columns)
    in_ms = cost is not None and cost.cost_type == "measured"
    time_ms = compute_ms + columns["optimizer_ms"] + columns["data_ms"] if in_ms else compute_ms
    return {
        "cost_type": merged.facts.config.schedule.cost_type,
        "padded_tokens": _error(tokens / speeds, compute_ms, scaled=True),
        "cost": _nothing() if predicted is None else _error(predicted / speeds, time_ms, scaled=not in_ms),
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
            found = _coefficients(merged)
            return None if found is None else CostModel("measured", alpha=found[0], beta=found[1], gamma=found[2])
    return None


def _coefficients(merged: MergedRun) -> tuple[float, float, float] | None:
    config = merged.facts.config
    if config.schedule.cost_coefficients is not None or config.probe.run is None:
        return config.schedule.cost_coefficients
    try:
        fit = read_probe(merged.run.path.parent / config.probe.run).cost_model
    except RecordError:
        return None
    return None if fit is None else (fit.alpha_ms, fit.beta_ms_per_token, fit.gamma_ms_per_token2)


def _predicted(cost: CostModel, columns: dict[str, FloatArray]) -> FloatArray | None:
    """Predicted cost of each row's share; None where the rows do not tell it."""
    tokens, samples = columns["padded_tokens"], columns["local_batch"]
    if cost.cost_type == "tokens":
        return tokens
    if not len(tokens) or float(columns["micro_batches"].max()) > 1:
        return None
    return cost.cost_padded(samples, tokens / np.maximum(samples, 1))


def _error(predicted: FloatArray, time_ms: FloatArray, *, scaled: bool) -> ProxyError:
    if len(predicted) < 2 or not predicted.sum() > 0:
        return _nothing()
    factor = time_ms.sum() / predicted.sum() if scaled else 1.0
    mape = float(np.mean(np.abs(factor * predicted - time_ms) / time_ms))
    spread = predicted.std() > 0 and time_ms.std() > 0
    return {"correlation": float(np.corrcoef(predicted, time_ms)[0, 1]) if spread else None, "mape": mape}


def _nothing() -> ProxyError:
    return {"correlation": None, "mape": None}
