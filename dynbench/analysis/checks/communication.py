"""What communication costs, and whether two ways to tell it agree."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from dynbench.analysis.arms import Arm
from dynbench.analysis.checks.evidence import Evidence, Seen, mean_share
from dynbench.analysis.communication import against_null, sent_bytes
from dynbench.analysis.profile import profile_of
from dynbench.config.schema import Config
from dynbench.plugins import STRATEGIES
from dynbench.runs.phrase import Phrase

COMMUNICATION_LIMIT = 0.30
TWO_WAYS_LIMIT = 0.10
"""Of the larger of the two."""
LEAST_DIFFERENCE = 0.02
"""Of the step, below which a difference is noise."""
BYTES_LIMIT = 0.05
PROFILE_LIMIT, PROFILED_FROM = 0.10, 0.25
"""Part by which the two shares may differ, where at least this part of a profiled step is communication."""


def exposed_communication(evidence: Evidence) -> Iterator[Seen]:
    """Arms that communicate for over `COMMUNICATION_LIMIT` of their time while even their last rank waits.

    One finding for all that the same would help.
    """
    found: dict[str, list[tuple[float, str]]] = {}
    for arm in evidence.arms:
        if (share := mean_share(arm, "exposed_comm_ms")) > COMMUNICATION_LIMIT:
            found.setdefault(_shortened_by(arm.runs[0].facts.config), []).append((share, arm.label))
    for case, arms in found.items():
        shares = [Phrase.of("exposed.share", arm=label, share=share) for share, label in sorted(arms, reverse=True)]
        yield Seen("info", {"arms": Phrase.of("list", items=shares), "limit": COMMUNICATION_LIMIT}, case)


def _shortened_by(config: Config) -> str:
    """Which text says what makes the communication of a configuration shorter."""
    strategy = STRATEGIES.get(config.sync.name)
    if strategy is not None and strategy.per_tensor:
        return "messages"
    if config.compress.name != "none":
        return "compress"
    return "none" if strategy is None or strategy.compresses else "uncompressed"


def exposed_two_ways(evidence: Evidence) -> Iterator[Seen]:
    """Arms of which two ways to tell exposed communication, means over launches, differ by over `TWO_WAYS_LIMIT`."""
    for arm in evidence.arms:
        found = [(run, against) for run in arm.whole if run.measured.height and (against := against_null(run))]
        if not found:
            continue
        sync_ms = fmean(float(run.measured["exposed_comm_ms"].sum()) / run.measured.height for run, _ in found)
        exposed_ms, null_ms = (fmean(getattr(one, name) for _, one in found) for name in ("exposed_ms", "null_ms"))
        if abs(exposed_ms - sync_ms) <= max(TWO_WAYS_LIMIT * max(sync_ms, exposed_ms), LEAST_DIFFERENCE * null_ms):
            continue
        parts = {
            "waiting": fmean(against.sync_ms for _, against in found) - sync_ms,
            "compute": fmean(against.compute_ms for _, against in found),
            "optimizer": fmean(against.optimizer_ms for _, against in found),
            "other": fmean(against.other_ms for _, against in found),
        }
        # A step without communication waits as well, which makes its difference smaller. All else makes it larger, and
        # passes take longer only where communication goes on beside them.
        if exposed_ms < sync_ms:
            most = min(parts, key=parts.__getitem__)
            known = most == "waiting" and parts[most] < 0
        else:
            most = max(parts, key=parts.__getitem__)
            known = most != "waiting" and parts[most] > 0 and (most != "compute" or _hides(arm))
        values = {"sync_ms": sync_ms, "null_ms": exposed_ms, "part_ms": parts[most], "limit": TWO_WAYS_LIMIT}
        yield Seen("info", {"arm": arm.label, **values}, most if known else "unknown")


def _hides(arm: Arm) -> bool:
    """Whether some of its communication goes on during the passes."""
    steps = [run.measured for run in arm.whole if "hidden_comm_ms" in run.measured.columns]
    return sum(float(each["hidden_comm_ms"].sum()) for each in steps) > 0


def bytes_sent(evidence: Evidence) -> Iterator[Seen]:
    """Runs whose processes sent more or less than the formulas say, by over `BYTES_LIMIT`.

    What headers can be explains more, and is told as such.
    """
    for run in evidence.measured_runs:
        sent = sent_bytes(run)
        if sent.ratio is None or abs(sent.ratio - 1) <= BYTES_LIMIT:
            continue
        values = {"run": run.label, "ratio": sent.ratio, "limit": BYTES_LIMIT, "strategy": run.facts.config.sync.name}
        if 1 < sent.ratio <= 1 + BYTES_LIMIT + sent.headers:
            messages = float(run.measured["collectives"].sum())
            message_bytes = float(run.measured["bytes_wire"].sum()) / messages if messages else 0.0
            yield Seen("info", {**values, "message_bytes": message_bytes}, "headers")
        else:
            yield Seen("warn", values, "more" if sent.ratio > 1 else "fewer")


def profiled_shares(evidence: Evidence) -> Iterator[Seen]:
    """Runs of which the profiler and the wire do not agree on how much of the profiled steps is communication."""
    for run in evidence.runs:
        found = profile_of(run)
        if found is None or not isinstance(wire := found["wire_comm_share"], float):
            continue
        profiled = float(str(found["comm_share"]))
        if max(wire, profiled) >= PROFILED_FROM and abs(profiled / wire - 1 if wire else 1) > PROFILE_LIMIT:
            values = {"run": run.label, "profiled": profiled, "wire": wire, "limit": PROFILE_LIMIT}
            yield Seen("warn", values, "fewer") if profiled > wire else Seen("info", values, "more")
