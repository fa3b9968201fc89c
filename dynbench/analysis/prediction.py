"""What a probe predicted for a comparison, to be held against what was achieved."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dynbench.analysis.merge import MergedRun
from dynbench.errors import RecordError
from dynbench.runs.probe_record import ProbeRecord, read_probe

log = logging.getLogger(__name__)

STATIC = "static"
WINDOW = "window"


def predicted_speedup(baseline: MergedRun, candidate: MergedRun) -> float | None:
    """Speed-up of the candidate's policy over the baseline's as its probe predicted it.

    None where no probe was used, where it is gone, or where it predicted something else: other workers, another global
    batch, another window, or one micro-batch per rank where the runs may take several.
    """
    probe = _probe_of(candidate) or _probe_of(baseline)
    if probe is None:
        return None
    if (probe.world_size, probe.global_batch) != (candidate.workers, candidate.facts.config.train.global_batch):
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
