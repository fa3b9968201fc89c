"""`dynbench probe`: what fits on every rank, what a step costs there, and what scheduling can gain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dynbench.cli.common import Columns, Settings, next_command, print_lines, print_records, print_table, setting_words
from dynbench.cli.options import command

if TYPE_CHECKING:
    from dynbench.config.schema import Config
    from dynbench.experiment.training import NextTraining
    from dynbench.runs.probe_record import ProbeRecord
    from dynbench.runs.run import Run


@command(
    named=True,
    config=("workload", "sync", "train", "launch", "probe"),
    table=True,
    epilog="\b\nExamples:\n  dynbench probe --name small\n  dynbench probe --memory-limit 2GiB --lengths 64,128,256\n"
    "  dynbench train --mode dynamic --cost-type measured --probe small --capacity small",
)
def probe(settings: Settings) -> None:
    """Find the largest micro-batch of every rank and length, and fit a cost model of the training step."""
    from dynbench.experiment.training import next_training
    from dynbench.probe.prober import run_probe
    from dynbench.runs.probe_record import read_probe
    from dynbench.runs.recorder import named

    store = settings.store()
    with settings.working("probing") as report:
        config = settings.config(paths=True)
        run = run_probe(config, store, report=report, asked=config, **settings.naming)
        with named(run):
            report("checking the run to come")
            coming = next_training(config, run, store)
    record = read_probe(run.path)
    raw = {"schema_version", "trials", "timings", "tables", "workload"}  # they stay in `probe.json`
    facts = record.model_dump(exclude=raw) if settings.as_json else {}
    if not settings.printed({"run": run.reference, **facts, "train": coming}, str(run.path)):
        show_probe(record)
        print_lines("", f"run      {run.path}", *_next_lines(coming, config, run))


def configured(config: Config) -> dict[str, object]:
    """The schedule and the steps as configured: the probe's run has them as they were decided for probing."""
    found: dict[str, object] = {f"schedule.{key}": value for key, value in config.schedule}
    found |= {"schedule.policy": config.schedule.policy_name, "train.lr_warmup_steps": config.train.lr_warmup_steps}
    return found if config.train.epochs is None else {**found, "train.epochs": config.train.epochs}


def next_settings(config: Config, run: Run) -> dict[str, object]:
    """What the training that is suggested sets beside the configuration of the probe's run."""
    from dynbench.config.schema import changed

    policy = None if config.schedule.policy == "static" else config.schedule.policy
    dynamic = changed(config, {"schedule.mode": "dynamic", "schedule.policy": policy})
    return {**configured(dynamic), "probe.run": run.label}


def _next_lines(coming: NextTraining, config: Config, run: Run) -> Iterator[str]:
    """The command that goes on, with settings whose steps all fit, and why they are not those of the probe."""
    root = run.path.parent
    if coming.stopped_by is not None:
        yield f"training with --global-batch {coming.global_batch} would stop: {coming.stopped_by}"
    if coming.instead is None:
        again = next_command("probe", *setting_words("probe", run, configured(config)), root=root)
        yield f"next     {again} with a larger --memory-limit or a smaller --max-length"
        return
    if coming.instead:
        replaced = ", ".join(f"{key} {value}" for key, value in coming.instead.items())
        yield f"with {replaced} all {coming.steps} steps fit"
    settings = {**next_settings(config, run), **coming.instead}
    yield f"next     {next_command('train', *setting_words('train', run, settings), root=root)}"


COLUMNS: Columns = {
    "rank": "rank",
    "tokens": "length_tokens",
    "largest micro-batch": lambda row: (
        "no limit found" if row["max_batch_samples"] is None else row["max_batch_samples"]
    ),
    "passed": "tested_ok_samples",
    "failed": lambda row: "none" if (least := row["tested_fail_samples"]) is None else least,
    "peak MB of what passed": lambda row: None if row["peak_mem_mb"] is None else f"{row['peak_mem_mb']:,.0f}",
}


def show_probe(record: ProbeRecord) -> None:
    """The table of capacities, then what its columns are of, the fitted cost and the predictions."""
    limit = "" if record.memory_limit_mb is None else f", {record.memory_limit_mb:,.0f} MB per process"
    print_lines(f"capacity on {record.device}, {record.precision}{limit}")
    rows = [
        {
            "rank": row.rank,
            "length_tokens": row.length,
            "max_batch_samples": None if row.tested_fail is None else row.max_batch,
            "tested_ok_samples": row.tested_ok,
            "tested_fail_samples": row.tested_fail,
            "peak_mem_mb": row.peak_mem_mb,
        }
        for row in record.capacity
    ]
    print_records(COLUMNS, rows, keys=2)
    print_lines(*_notes(record))
    _show_cost(record)
    print_lines(*_prediction(record))


def _notes(record: ProbeRecord) -> Iterator[str]:
    """What the table's columns are of, and what else was found of memory."""
    if record.assumes is not None:
        yield f"capacities of {record.assumes}; what is received and evaluated comes on top"
    if record.server_mb is not None:
        yield "the ranks above are the workers, counted from 0"
        yield f"a server holds {record.server_mb:,.0f} MB of parameters, gradients and optimizer state"
    if record.memory_limit_mb is not None and record.capacity:
        yield "passed, failed: two steps of this shape alone; peak: resident memory of the process, libraries included"
    soak, memory = record.soak, record.memory_model
    for row in record.capacity if soak is not None and soak.shrunk else ():
        if row.tested_fail is not None and row.tested_fail <= row.tested_ok:
            yield (
                f"rank {row.rank}, {row.length} tokens: {row.tested_fail} samples passed alone and failed in the soak; "
                f"{row.max_batch} are left, a margin of {1 - row.max_batch / row.tested_ok:.0%}"
            )
    if soak is not None and soak.shrunk:
        yield (
            "the soak lowered the largest micro-batch below what passed alone: steps of other shapes leave freed "
            "memory in pieces, which the process keeps"
        )
    if memory is not None:
        yield f"memory model: mean error {memory.mape:.1%}; with padded tokens alone: {memory.tokens_only_mape:.1%}"
    if soak is not None:
        shrunk = f" after lowering the capacities {soak.shrunk} times" if soak.shrunk else ""
        peak = "" if soak.peak_mem_mb is None else f", peak {soak.peak_mem_mb:,.0f} MB"
        fewer = soak.global_batch not in (None, record.global_batch)
        batch = f" at a global batch of {soak.global_batch}, the largest that fits," if fewer else ""
        yield f"soak: {soak.steps} steps of the plan{batch} {'passed' if soak.ok else 'FAILED'}{shrunk}{peak}"


def _show_cost(record: ProbeRecord) -> None:
    cost = record.cost_model
    if cost is None:
        return
    print_lines(
        "",
        f"step time: {cost.alpha_ms:.3g} ms + {1e3 * cost.beta_ms_per_token:.3g} us per padded token"
        f" + {1e6 * cost.gamma_ms_per_token2:.3g} ns per padded token and token of length",
        None
        if cost.further_ms is None
        else f"every micro-batch of a step after its first: {cost.further_ms:.3g} ms in place of the first term",
    )
    print_table(
        ("cost type", "error on unseen points", "rank correlation"),
        [
            (name, "too few points", "") if it is None else (name, f"{it.mape:.1%}", f"{it.rank_correlation:.3f}")
            for name, it in cost.heldout.items()
        ],
    )
    if record.allreduce is not None:
        print_lines(f"all-reduce of the gradient: {record.allreduce.ms:.3g} ms for {record.allreduce.megabytes:.3g} MB")
    elif record.overhead_ms is not None:
        print_lines(f"virtual ranks: {record.overhead_ms:.3g} ms per step for communication (launch.comm_model)")
    if min(record.speeds) < 0.9:
        print_lines(f"relative speed of the ranks: {', '.join(f'{speed:.2f}' for speed in record.speeds)}")


def _prediction(record: ProbeRecord) -> Iterator[str]:
    yield ""
    known = {policy: speedup for policy, speedup in record.predicted_speedup.items() if speedup is not None}
    if not known:
        yield "no prediction: static cannot be planned with these capacities and this global batch"
        return
    gains = ", ".join(f"{policy} {speedup:.2f}x" for policy, speedup in known.items())
    yield f"predicted speedup over static at B={record.global_batch}, G={record.world_size}: {gains}"
    if not record.break_even_tried:
        yield f"from which batch on it pays is not known: the data hold no batch for {record.world_size} ranks"
    elif record.break_even_batch is None:
        first, last = record.break_even_tried[0], record.break_even_tried[-1]
        yield (
            f"no global batch tried, from {first:,} doubled up to {last:,}, is predicted to gain more than the noise "
            "threshold: do not schedule"
        )
    elif record.break_even_batch > record.global_batch:
        yield f"at this batch the launch overhead hides the gain; it pays from B={record.break_even_batch} on"
    else:
        yield f"scheduling pays from a global batch of {record.break_even_batch} on"
