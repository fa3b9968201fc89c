"""The summary of a run: one object, and the same as a table.

Every statistic is over complete steps after the warm-up. A step lasts the maximum over ranks; a run's time is that of
its contiguous blocks of steps, each the maximum over ranks (`blocks`); throughput and fractions are ratios of totals
over that time; planning and data are inside it. Times in ms, memory in MB (1e6 bytes).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import polars as pl

from dynbench.analysis import tables
from dynbench.analysis.communication import communication_of
from dynbench.analysis.comparability import fact
from dynbench.analysis.compression import compression_of
from dynbench.analysis.crowding import Load, load_of, oversubscribed
from dynbench.analysis.data_facts import read_data
from dynbench.analysis.epochs import epochs_of
from dynbench.analysis.exposed_table import exposed_table
from dynbench.analysis.finding import Finding
from dynbench.analysis.links import links_of, links_table
from dynbench.analysis.memory_parts import memory_parts, memory_table
from dynbench.analysis.merge import MergedRun, merge_run
from dynbench.analysis.operations_table import operations_table
from dynbench.analysis.profile import profile_of
from dynbench.analysis.profile_table import phases_table, profile_rows, profile_table
from dynbench.analysis.proxy import proxy_error
from dynbench.analysis.result_line import RESULTS_FILE, result_line, results_csv
from dynbench.analysis.slowest import slowest_ranks
from dynbench.analysis.steps import PHASES, SPREAD_COLUMNS
from dynbench.analysis.targets import targets_of
from dynbench.analysis.timed import largest, timed_ms, timed_table
from dynbench.analysis.waste import waste_of
from dynbench.analysis.waste_table import waste_table
from dynbench.config.image_rules import has_lengths
from dynbench.errors import RecordError
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.json_record import read_json
from dynbench.runs.run import Run
from dynbench.table_text import csv_text

log = logging.getLogger(__name__)

Summary = dict[str, object]

PROFILE_CSV = "profile.csv"
"""What profiled steps went to, by arm, phase and operation."""
CHECKS_FILE = "checks.json"
"""What the checks found on a single run; a comparison holds its own."""


def summarise(run: Run, *, csv: bool | None = None) -> Summary:
    """Merges a run and writes summary.json, summary.csv and summary.md into its folder.

    Args:
        run: any run with at least one row; what is missing is named under `missing`.
        csv: as for `merge_run`.

    Raises:
        RecordError: no row of the run can be read.
    """
    return write_summary(merge_run(run, csv=csv))


def write_summary(merged: MergedRun) -> Summary:
    """As `summarise`, for a run already merged."""
    summary = summary_of(merged)
    folder = merged.run.path
    write_json(folder / "summary.json", summary)
    write_text(folder / RESULTS_FILE, results_csv([summary]))
    write_text(folder / "summary.csv", tables.summary_rows({merged.label: summary}).write_csv())
    write_profile(folder, {merged.label: [summary]})
    write_page(merged, summary)
    return summary


def write_profile(folder: Path, launches: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
    """Writes profile.csv, where steps of an arm were profiled."""
    rows = profile_rows(launches)
    if rows:
        write_text(folder / PROFILE_CSV, csv_text(rows))


def write_page(merged: MergedRun, summary: Mapping[str, object]) -> None:
    """Writes summary.md: the table, and what the checks found when the run was analyzed by itself."""
    folder = merged.run.path
    table = tables.markdown(tables.summary_rows({merged.label: summary}))
    launches = {merged.label: [summary]}
    shown = (
        waste_table(launches),
        timed_table(launches),
        memory_table(launches),
        exposed_table(launches),
        operations_table(launches),
        links_table(launches),
        phases_table(launches),
        profile_table(launches),
    )
    data = read_data(merged.facts.env, merged.facts.config.workload.max_length).lines()
    parts = [
        f"# {merged.label}",
        table,
        *(each.markdown() for each in shown if each),
        _footnote(summary, load_of(merged.facts)),
        *(f"**{word.capitalize()}:** {text}." for word, text in data),
    ]
    findings = _recorded_findings(folder)
    if findings is not None:
        parts += ["## Checks", tables.findings_markdown(findings)]
    write_text(folder / "summary.md", "\n\n".join(parts) + "\n")


def summary_of(merged: MergedRun) -> Summary:
    """The `summary` object of results/FIELDS.md; absent facts are None."""
    steps, facts = merged.measured, merged.facts
    total_ms = merged.time_ms if steps.height else None
    found: Summary = {
        "policy": facts.policy,
        "layout": facts.config.workload.layout,
        "mode": facts.config.schedule.mode,
        "launcher": facts.config.launch.launcher,
        "comm_model": facts.comm_model,
        "comm_model_said": facts.comm_model.record() if facts.comm_model is not None else None,
        "link_gbps": facts.link_gbps,
        "world_size": merged.world_size,
        "workers": merged.workers,
        "oversubscribed": oversubscribed(facts),
        "global_batch": facts.config.train.global_batch,
        "steps": steps.height,
        "warmup_steps": merged.steps.height - steps.height - merged.settling,
        "rows": merged.rows,
        "partial": merged.partial,
        "missing": list(merged.lacks),
        "step_time_ms": {**_distribution(steps, "step_time_max_ms", 50, 90, 95), "total": total_ms},
        "exposed_comm_ms": _distribution(steps, "exposed_comm_ms"),
        "time_ms": {phase.removesuffix("_ms"): _mean(steps, f"{phase}_mean") for phase in PHASES},
        "skipped_steps": int(steps["skipped"].sum()),
        "nan_steps": steps.filter(~pl.col("finite") | pl.col("skipped")).height,
        "clipped_steps": int(steps["clipped"].sum()) if "clipped" in steps.columns else None,
        "throughput_samples_per_s": _throughput(steps, total_ms, "global_batch", "throughput_samples_per_s"),
        "throughput_tokens_per_s": _throughput(steps, total_ms, "real_tokens", "throughput_tokens_per_s"),
        "padded_tokens_max": {
            "mean": _mean(steps, "padded_tokens_max"),
            "total": _total(steps, "padded_tokens_max"),
        },
        "padding_ratio": _ratio(_total(steps, "padded_tokens"), _total(steps, "real_tokens")),
        "wait_fraction": _ratio(_total(steps, "wait_ms_mean"), total_ms),
        "plan_fraction": _ratio(_total(steps, "plan_ms_mean"), total_ms),
        "waste": waste_of(merged),
        "slowest_ranks": slowest_ranks(merged),
        "std_over_ranks": {name: _distribution(steps, f"{name}_std", 95) for name in SPREAD_COLUMNS},
        "step_length_tokens": _step_lengths(steps),
        "proxy": proxy_error(merged),
        "peak_mem_mb": {
            "max": _number(steps["peak_mem_mb_max"].max()),
            "servers_max": largest(merged, "servers", "peak_mem_mb"),
        },
        "reserved_mem_mb": {"max": largest(merged, "workers", "reserved_mem_mb")},
        "loss": {"first": _end(steps, 0), "last": _end(steps, -1)} if facts.trains else {"first": None, "last": None},
        "eval": _evaluation(merged.evaluations, fact(facts.env, "data.unigram_perplexity")),
        "samples": int(steps["global_batch"].sum()),
        "real_tokens": int(steps["real_tokens"].sum()),
        "epochs": epochs_of(merged),
        "profile": profile_of(merged),
        "memory_parts": memory_parts(merged),
        "timed_ms": timed_ms(merged),
        **communication_of(merged),
        "compression": compression_of(merged),
        "targets": targets_of(merged),
    }
    found = found if has_lengths(facts.config) else found | _WITHOUT_LENGTHS
    found = {**found, "links": links_of(found)}
    return {**found, "record": asdict(result_line(merged, found))}


_NONE: dict[str, float | None] = {"mean": None, "std": None, "p95": None, "total": None}
_WITHOUT_LENGTHS: Summary = {
    "throughput_tokens_per_s": {key: _NONE[key] for key in ("mean", "p95")},
    "padded_tokens_max": {key: _NONE[key] for key in ("mean", "total")},
    "step_length_tokens": {key: _NONE[key] for key in ("mean", "std")},
    "padding_ratio": None,
}
"""What is unknown of samples without lengths, each of which counts as one token."""


def _step_lengths(steps: pl.DataFrame) -> dict[str, float | None]:
    """Mean over steps of their samples' mean length, and how far steps differ in it; random batches differ a little."""
    lengths = (steps["real_tokens"] / steps["global_batch"]).to_numpy()
    return {
        "mean": float(lengths.mean()) if lengths.size else None,
        "std": float(lengths.std()) if lengths.size else None,
    }


def _distribution(steps: pl.DataFrame, column: str, *percentiles: int) -> dict[str, float | None]:
    """Mean over steps, and percentiles over steps by linear interpolation."""
    values = steps[column].drop_nulls().to_numpy()
    named = {f"p{p}": float(np.percentile(values, p)) if values.size else None for p in percentiles}
    return {"mean": _mean(steps, column), **named}


def _throughput(steps: pl.DataFrame, total_ms: float | None, amount: str, per_step: str) -> dict[str, float | None]:
    """Ratio of totals, and the 95th percentile of the steps' own throughputs."""
    seconds = (total_ms or 0.0) / 1000
    return {"mean": _ratio(_total(steps, amount), seconds), "p95": _distribution(steps, per_step, 95)["p95"]}


def _evaluation(evaluations: pl.DataFrame, unigram: object) -> dict[str, object] | None:
    """The last evaluation, a perplexity beside that of single tokens."""
    if not evaluations.height:
        return None
    last = evaluations.tail(1).to_dicts()[0]
    return {**last, "unigram_perplexity": unigram} if "perplexity" in last else last


def _end(steps: pl.DataFrame, index: int) -> float | None:
    return _number(steps["loss_global"][index]) if steps.height else None


def _mean(steps: pl.DataFrame, column: str) -> float | None:
    return _number(steps[column].mean())


def _total(steps: pl.DataFrame, column: str) -> float | None:
    return _number(steps[column].sum()) if steps.height else None


def _ratio(top: float | None, bottom: float | None) -> float | None:
    return top / bottom if top is not None and bottom else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


@dataclass
class _Checks:
    checks: list[Finding]


def read_checks(folder: Path) -> list[Finding]:
    """What the checks found on a single run.

    Raises:
        RecordError: its file cannot be read.
    """
    return read_json(folder / CHECKS_FILE, _Checks, "Make it again with dynbench analyze.").checks


def _recorded_findings(folder: Path) -> list[Finding] | None:
    """None where the run was not analyzed by itself, or where what the checks found cannot be read."""
    if not (folder / CHECKS_FILE).is_file():
        return None
    try:
        return read_checks(folder)
    except RecordError as error:
        log.warning("%s; summary.md goes without it", error.message)
        return None


def _footnote(summary: Mapping[str, object], load: Load | None) -> str:
    lines = [tables.LEGEND]
    missing = summary["missing"]
    if isinstance(missing, list) and missing:
        lines.append(f"**Partial run:** {'; '.join(str(item) for item in missing)}.")
    if summary["launcher"] == "virtual":
        lines.append(tables.virtual_note(summary["comm_model"]))
    if summary["link_gbps"] is not None:
        lines.append(tables.emulated_note([summary["link_gbps"]]))
    if load is not None and load.oversubscribed:
        lines.append(tables.oversubscribed_note("the run", load))
    return "\n\n".join(lines)
