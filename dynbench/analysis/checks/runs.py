"""Whether single runs can be trusted: complete rows, conditions of the steps, slow ranks, what communication costs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from dynbench.analysis.arms import Part
from dynbench.analysis.checks.evidence import Evidence, Seen, mean_share, share_of_time
from dynbench.analysis.communication import sent_bytes
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.pace import PACE_LIMIT, slow_ranks, step_paces, step_tokens
from dynbench.analysis.profile import profile_of
from dynbench.analysis.run_facts import fact, load_of, status_phrase
from dynbench.analysis.stats import growth_p_value, relative_drift, robust_z
from dynbench.analysis.verdict import Verdict
from dynbench.config.schema import Config
from dynbench.errors import RecordError
from dynbench.plugins import STRATEGIES, WORKLOADS
from dynbench.runs.phrase import Phrase
from dynbench.runs.probe_record import read_probe

COMMUNICATION_LIMIT = 0.30
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


def bytes_sent(run: MergedRun) -> Iterator[Seen]:
    """Runs whose processes sent more or less than the formulas say, by over `BYTES_LIMIT`.

    What headers can be explains more, and is told as such.
    """
    sent = sent_bytes(run)
    if sent.ratio is None or abs(sent.ratio - 1) <= BYTES_LIMIT:
        return
    values = {"ratio": sent.ratio, "limit": BYTES_LIMIT, "strategy": run.facts.config.sync.name}
    if 1 < sent.ratio <= 1 + BYTES_LIMIT + sent.headers:
        messages = float(run.measured["collectives"].sum())
        message_bytes = float(run.measured["bytes_wire"].sum()) / messages if messages else 0.0
        yield Seen("info", {**values, "message_bytes": message_bytes}, "headers")
    else:
        yield Seen("warn", values, "more" if sent.ratio > 1 else "fewer")


def profiled_shares(run: MergedRun) -> Iterator[Seen]:
    """Runs of which the profiler and the wire do not agree on how much of the profiled steps is communication."""
    found = profile_of(run)
    if found is None or not isinstance(wire := found["wire_comm_share"], float):
        return
    profiled = float(str(found["comm_share"]))
    if max(wire, profiled) >= PROFILED_FROM and abs(profiled / wire - 1 if wire else 1) > PROFILE_LIMIT:
        values = {"profiled": profiled, "wire": wire, "limit": PROFILE_LIMIT}
        yield Seen("warn", values, "fewer") if profiled > wire else Seen("info", values, "more")


SKIPPED_LIMIT = 0.05
"""Optimizer steps that the loss scaler may skip, as a part of the measured ones."""
UNACCOUNTED_LIMIT = 0.05
"""Time outside every recorded phase, as a part of the step time."""
MEMORY_TOLERANCE = 1.01
"""Pages of libraries that a rank touches and a trial does not."""
WARMUP_LIMIT = 3.5
"""Standard deviations above which a first value stands out: at a spread of 15 % one of twice the time does."""
WARMUP_PACE = 1.25
"""Times of the other steps' pace below which a first one matters to no mean, however quiet the machine."""
DRIFT_LIMIT = 0.10
"""Change over one launch, as a part of its median step."""
PLANNING_LIMIT = 0.01
CHEAPER_PLANS = ("prefix", "window")
"""Policies with a setting that makes planning cheaper."""


def missing_ranks(run: MergedRun) -> Iterator[Seen]:
    """Per run, ranks that were launched and left no row: a maximum over the others is too small."""
    if run.missing_ranks:
        ranks = {"ranks": run.missing_ranks[:8], "present": len(run.ranks), "world_size": run.world_size}
        yield Seen("fail", {**ranks, "folder": str(run.run.ranks_dir)})


def partial_run(run: MergedRun) -> Iterator[Seen]:
    """Runs that ended early: their numbers are of the part that is there."""
    facts, measured = run.facts, run.measured.height
    steps = facts.config.train.steps - run.settling
    if measured < steps or facts.status != "completed":
        found = {"measured": measured, "status": status_phrase(facts.status), "steps": steps}
        values = {**found, "folder": str(run.run.logs_dir)}
        yield Seen("warn", values, "unfinished" if facts.unfinished else "ended")


def rank_files(run: MergedRun) -> Iterator[Seen]:
    """Rank files that could not be used, or only in part."""
    for note in run.notes:
        yield Seen("warn", {"note": note})


def torn_lines(run: MergedRun) -> Iterator[Seen]:
    """Per run, lines of rank files that were cut short or cannot be read."""
    if run.torn_lines:
        yield Seen("warn", {"lines": run.torn_lines})


def nan_loss(run: MergedRun) -> Iterator[Seen]:
    """Runs whose loss is not finite: the model has diverged; information where the scaler skipped those steps."""
    broken = run.steps.filter(~pl.col("loss_global").is_finite())
    if broken.height:
        counts = {"broken": broken.height, "steps": run.steps.height, "first": int(broken["step"][0])}
        yield Seen("info" if broken["skipped"].all() else "fail", counts, "training")
        return
    evaluations = run.evaluations
    if "loss" in evaluations.columns and not evaluations["loss"].cast(pl.Float64, strict=False).is_finite().all():
        yield Seen("fail", {}, "evaluation")


def skipped_steps(run: MergedRun) -> Iterator[Seen]:
    """Runs in which the fp16 loss scaler skipped more than `SKIPPED_LIMIT` of the measured steps."""
    share = float(run.measured.select(pl.col("skipped").mean()).item() or 0.0)
    if share > SKIPPED_LIMIT:
        yield Seen("warn", {"share": share, "limit": SKIPPED_LIMIT})


def unaccounted_time(run: MergedRun) -> Iterator[Seen]:
    """Runs with more than `UNACCOUNTED_LIMIT` of their step time outside every phase."""
    share = share_of_time(run, "other_ms_mean")
    if share > UNACCOUNTED_LIMIT:
        yield Seen("info", {"share": share, "limit": UNACCOUNTED_LIMIT})


SLOWER_CHANCE, FASTER_CHANCE = 0.0125, 0.0075
"""How often equal steps would get slower, or faster, by chance: 2 % in all, less of it for steps that get faster, as a
warm-up does, for which `short_warmup` looks too."""


def memory_limit(run: MergedRun) -> Iterator[Seen]:
    """Runs whose peak is above the memory that their capacities were probed under: they promise more than they keep."""
    limit = _limit_mb(run)
    peaks = run.steps.select("step", peak_mb="peak_mem_mb_max").drop_nulls().sort("peak_mb", descending=True)
    if limit is not None and peaks.height and peaks["peak_mb"][0] > MEMORY_TOLERANCE * limit:
        yield Seen("warn", {**peaks.row(0, named=True), "limit_mb": limit})


def _limit_mb(run: MergedRun) -> float | None:
    """Memory of a process in the trials, MB; None on GPUs, without probed capacities, or where the probe is gone."""
    named = run.facts.config.schedule.capacity
    try:
        return read_probe(run.run.path.parent / named).memory_limit_mb if isinstance(named, str) else None
    except RecordError:
        return None


def short_warmup(evidence: Evidence) -> Iterator[Seen]:
    """Runs whose first measured step stands so far out of what its tokens cost that it still belongs to the warm-up.

    Information where every verdict stays without as many steps more as are advised.
    """
    for run in evidence.runs:
        if run.measured.height < 10:
            continue
        first, *others = step_paces(run)
        z = robust_z(first, others)
        if z > WARMUP_LIMIT and first > WARMUP_PACE * float(np.median(others)):
            longer = 2 * max(5, run.facts.config.train.warmup_steps)
            taken = {"first_ms": float(run.measured["step_time_max_ms"][0]), "pace": float(first), "deviations": z}
            more = (longer - run.facts.config.train.warmup_steps) / run.measured.height
            values = {"run": run.label, **taken, "limit": WARMUP_LIMIT, "warmup_steps": longer}
            yield _unless_harmless(evidence, run, values, "", (min(more, 0.5), 1))


def drift(evidence: Evidence) -> Iterator[Seen]:
    """Runs whose steps, for what their tokens cost, change by more than `DRIFT_LIMIT`, and not by chance.

    Information where every verdict is that of either half of the steps, too.
    """
    for run in evidence.runs:
        if run.measured.height < 20:
            continue
        paces = step_paces(run)
        change = relative_drift(paces)
        towards, chance = (paces, SLOWER_CHANCE) if change > 0 else (-paces, FASTER_CHANCE)
        p = growth_p_value(towards, step_tokens(run))
        if abs(change) > DRIFT_LIMIT and p < chance:
            values = {"run": run.label, "drift": change, "limit": DRIFT_LIMIT, "chance": chance, "p": p}
            case = "slower" if change > 0 else "faster"
            yield _unless_harmless(evidence, run, values, case, (0, 0.5), (0.5, 1))


def _unless_harmless(evidence: Evidence, run: MergedRun, values: dict[str, object], case: str, *parts: Part) -> Seen:
    """A warning that names the candidates not decided, or otherwise over a part of the steps; else information."""
    compared = [each for each in evidence.comparisons if any(run in pair for pair in each.pairing.pairs)]
    in_doubt = [
        each.candidate.label
        for each in compared
        if each.verdict in (Verdict.AMBIGUOUS, Verdict.ESTIMATE)
        or any(each.verdict_over(part) != each.verdict for part in parts)
    ]
    if compared:
        outcome = Phrase.of("verdicts.in_doubt" if in_doubt else "verdicts.stay", candidates=in_doubt)
        values |= {"in_doubt": in_doubt, "outcome": outcome}
    return Seen("info" if compared and not in_doubt else "warn", values, case)


def oversubscribed_cores(evidence: Evidence) -> Iterator[Seen]:
    """The first run with more threads on CPU than cores: ranks then wait for the system's scheduler, not each other.

    `--nproc` is no way out where arms of fewer and more ranks are compared: it would make them all alike.
    """
    loads = [(run, load) for run in evidence.runs if (load := load_of(run.facts)) is not None]
    compared = len({load.ranks for _, load in loads}) > 1
    for run, load in loads:
        if load.oversubscribed:
            ranks, threads, cores = load.ranks, load.threads, load.cores
            fewer_ranks = ranks > cores or threads == 1
            setting, number = ("nproc", max(1, cores // threads)) if fewer_ranks else ("threads", cores // ranks)
            values = {"run": run.label, "ranks": ranks, "threads": threads, "cores": cores, "number": number}
            yield Seen("warn", values, "arms" if fewer_ranks and compared else setting)
            return


def planning_cost(evidence: Evidence) -> Iterator[Seen]:
    """Arms that plan for more than `PLANNING_LIMIT` of their step time, which contains it, mean over launches.

    Not `static`: no other policy plans in less.
    """
    for arm in evidence.arms:
        share, policy = mean_share(arm, "plan_ms_mean"), arm.runs[0].facts.policy
        if policy != "static" and share > PLANNING_LIMIT:
            values = {"arm": arm.label, "share": share, "limit": PLANNING_LIMIT}
            splits = arm.runs[0].facts.config.schedule.micro_batches != 1
            yield Seen("warn", values, policy if policy in CHEAPER_PLANS else "micro_batches" if splits else "other")


def null_wire(evidence: Evidence) -> Iterator[Seen]:
    """The first run whose ranks sent nothing to each other."""
    run = next((run for run in evidence.runs if not run.facts.trains), None)
    if run is not None:
        yield Seen("warn", {"run": run.label, "setting": run.facts.config.sync.disabled_by})


def virtual_ranks(evidence: Evidence) -> Iterator[Seen]:
    """The first run whose ranks were played one after another on one device."""
    run = next((run for run in evidence.runs if run.facts.virtual), None)
    if run is not None:
        model = run.facts.comm_model
        yield Seen("info", {"run": run.label, "world_size": run.world_size, "comm_model": model})


def slowest_rank(evidence: Evidence) -> Iterator[Seen]:
    """Each rank that is slowest more often than equal ranks would be and slow at equal work, in the first such arm.

    A rank that `launch.slowdown` stretches was asked for, and is told as information.
    """
    reported: set[int] = set()
    for arm in evidence.arms:
        facts = arm.runs[0].facts
        for found in slow_ranks(arm.whole):
            if found["rank"] in reported:
                continue
            reported.add(rank := int(found["rank"]))
            intended = facts.config.launch.slowdown.get(rank, 1.0) > 1
            case = "asked" if intended else "virtual" if facts.virtual else "machine"
            yield Seen("info" if intended else "warn", {"arm": arm.label, **found, "limit": PACE_LIMIT}, case)


def one_class(evidence: Evidence) -> Iterator[Seen]:
    """The first run that learnt labels of one class: the loss falls to nothing whatever the model does."""
    for run in evidence.runs:
        workload = WORKLOADS.get(run.facts.config.workload.name)
        learns_labels = workload is None or workload.classes
        if learns_labels and fact(run.facts.env, "data.train.classes") == 1:
            yield Seen("warn", {"run": run.label})
            return


def samples_see_each_other(evidence: Evidence) -> Iterator[Seen]:
    """The first run of each arm in which samples of a row see each other, as was seen before its first step."""
    for arm in evidence.arms:
        run = next((run for run in arm.runs if run.facts.leak is not None), None)
        if run is None or run.facts.leak is None:
            continue
        tolerance = fact(run.facts.env, "packed_rows.tolerance")
        yield Seen(
            "warn",
            {"run": run.label, "tolerance": tolerance, **run.facts.leak.values},
            run.facts.leak.say.removeprefix("leak."),
        )
