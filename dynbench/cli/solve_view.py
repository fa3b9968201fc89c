"""How a solution looks on a terminal: progress while it is found, the table, and the training that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any

from dynbench.cli.common import Columns, Settings, next_command, print_lines, print_records, setting_words
from dynbench.cli.console import stderr
from dynbench.config.part_rules import whole_window_steps
from dynbench.config.schema import Config, Launch, Workload, changed, value_of
from dynbench.engine.planning import names_a_probe
from dynbench.errors import RecordError
from dynbench.experiment.solve_run import Solution, flat
from dynbench.experiment.trace_sources import undecided_config
from dynbench.plugins import DATASETS, POLICIES, WORKLOADS, options_of
from dynbench.plugins.datasets import FileOptions
from dynbench.plugins.policies import plan_of
from dynbench.runs.provenance import usable_cores
from dynbench.schedule.solve import LINE_LIMIT_S, Line, Skipped, cost_is_estimated, speedup_is_estimated
from dynbench.schedule.traces import Trace, describe
from dynbench.table_text import format_value
from dynbench.units import format_count

PATIENCE_S = 2.0
"""Progress is shown once a solve takes longer than this."""
SPREAD_LIMIT = 1.5
"""Steps whose mean lengths are spread more than this many times random batches' are sorted, not random."""
LEAST_GAIN = 1.005
"""A plan no more than half a percent better than static's, shown as 1.00x, is not worth a recommendation."""
ESTIMATE = "~"
"""Before a cost that was not measured on micro-batches of the line's layout."""
SHORTEST = 2
"""The least that `workload.max_length` takes, tokens."""
PROBED = (
    *("workload.weights", "workload.model", "workload.size", "workload.dropout", "workload.pad_to_multiple_of"),
    *("train.precision", "launch.device", "launch.slowdown"),
)
"""Settings in which training must not differ from the probe that it uses."""
NO_SAMPLES = {"workload.dataset": "tsv", "workload.data_path": "FILE"}
"""Stands for the samples of a trace that holds lengths only: FILE is for the user to fill in."""

# The table -----------------------------------------------------------------------------------------------------------


def progress_on(show: Callable[[str], None]) -> Callable[[Line | Skipped], None]:
    """What to call with every outcome; it shows how many there were, and the last."""
    numbers = count(1)

    def update(outcome: Line | Skipped) -> None:
        facts = outcome.result if isinstance(outcome, Line) else {**asdict(outcome), "policy": ""}
        where = "{trace} G={world_size} {policy}".format(**facts).rstrip()
        show(f"{next(numbers)} lines solved, last {where}")

    return update


def print_solution(solution: Solution, figures: Sequence[Path], following: Sequence[str]) -> None:
    """Statistics of the traces, the table, gaps and notes on stdout; what was left out on stderr.

    Args:
        solution: what was solved.
        figures: files drawn.
        following: the lines on what comes next.
    """
    results: list[Mapping[str, Any]] = [line.result for line in solution.lines]
    chosen = any(result["max_length"] is not None for result in results)
    for trace in solution.traces:
        print_lines(*_about(trace, chosen))
    best = [index for index, result in enumerate(results) if _is_best(result, results)]
    rows = [{**result, "mark": " *" if index in best else ""} for index, result in enumerate(results)]
    print_records(COLUMNS, rows, map(flat, results), keys=4, bold=best)
    print_lines(*_greedy_notes(results), _steps_note(solution), *_notes(results))
    left_out: dict[tuple[str, str], list[str]] = {}
    for item in solution.skipped:
        left_out.setdefault((item.policy or "all policies", item.reason), []).append(
            f"{item.trace} G={item.world_size}"
        )
    for (policy, reason), where in left_out.items():
        stderr.print(f"skipped {policy} ({', '.join(where)}): {reason}", soft_wrap=True)
    shown = (f"figures  {len(figures)} files in {solution.run.figures_dir}",) if figures else ()
    print_lines(*shown, f"folder   {solution.run.path}", *following)


def best_by_ranks(results: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any] | None]:
    """Of the first trace where a policy gives back anything, by number of ranks: the line that does so most, if any.

    Where no policy that could do so was tried, partition on the first trace.
    """
    best = [r for r in results if _is_best(r, results)]
    trace = (best or results)[0]["trace"]
    firsts = {r["world_size"]: r for r in reversed(results) if r["trace"] == trace}
    if not best:
        return {ranks: {**firsts[ranks], "policy": "partition", "window": 1} for ranks in sorted(firsts)}
    found = {r["world_size"]: r for r in best if r["trace"] == trace}
    return {ranks: found.get(ranks) for ranks in sorted(firsts)}


def _about(trace: Trace, chosen: bool) -> Iterator[str]:
    """Its statistics, how many samples were cut here, and, where no length was chosen, how many `train` would cut."""
    s = describe(trace.lengths)
    yield (
        f"{trace.name}: {s.samples:,} samples, mean {s.mean:.1f}, sd {s.sd:.1f}, p50 {s.p50:g}, p95 {s.p95:g}, "
        f"p99 {s.p99:g}, max {s.max} tokens ({trace.source})"
    )
    if trace.cut_samples:
        yield f"  cut here: {trace.cut_samples:,} samples were longer than {s.max} tokens"
    if trace.longer_than_train and not chosen:
        most = trace.train_max_length
        yield (
            f"  not cut here: {trace.longer_than_train:,} samples are longer than {most} tokens, where train cuts "
            f"unless told otherwise (workload.max_length); --max-length {most} cuts here too"
        )


def _is_best(result: Mapping[str, Any], results: Iterable[Mapping[str, Any]]) -> bool:
    """The most given back, if anything is, among policies that can train and leave the batches random."""
    line = itemgetter("trace", "world_size")
    rivals = [r for r in results if line(r) == line(result) and _counts(r) and _gains(r)]
    return bool(rivals) and result is max(rivals, key=lambda r: r["speedup_vs_static"] or 0.0)


def _gains(result: Mapping[str, Any]) -> bool:
    """More than `LEAST_GAIN`, or not known."""
    speedup = result["speedup_vs_static"]
    return speedup is None or bool(speedup > LEAST_GAIN)


def _counts(result: Mapping[str, Any]) -> bool:
    spread = result["step_length_spread"]
    return _trains(result) and (spread is None or spread <= SPREAD_LIMIT)


def _trains(result: Mapping[str, Any]) -> bool:
    return POLICIES[plan_of(result["policy"])[0]].in_train


def _speedup(result: Mapping[str, Any]) -> str:
    speedup = result["speedup_vs_static"]
    return "-" if speedup is None else f"{ESTIMATE if speedup_is_estimated(result) else ''}{speedup:.2f}x"


def _samples(result: Mapping[str, Any]) -> str:
    violations = f" ({result['capacity_violations']:,} over capacity)" if result["capacity_violations"] else ""
    return f"{result['local_batch']['min']}-{result['local_batch']['max']}{violations}"


COLUMNS: Columns = {
    "trace": "trace",
    "G": "world_size",
    "B": lambda row: f"{row['global_batch']:,}",
    "policy": lambda row: f"{row['policy']}{_window(row)}{row['mark']}",
    "max cost": lambda row: f"{ESTIMATE * cost_is_estimated(row)}{format_count(round(row['mean_max_cost'], 3))}",
    "vs static": _speedup,
    "bound": lambda row: format_count(round(row["mean_bound"], 3)),
    "gap": lambda row: format_value(row["gap_to_bound"], "%"),
    "padding": lambda row: f"{row['padding_ratio']:.2f}",
    "samples/rank": _samples,
    "lost/rep./cut": lambda row: "/".join(map(format_count, row["epoch_samples"].values())),
    "spread": lambda row: "-" if row["step_length_spread"] is None else f"{row['step_length_spread']:.2f}",
    "plan ms": lambda row: f"{row['plan_ms']['p50']:.3g}",
    "exact": lambda row: "no" if row["exact"] == "none" else row["exact"],
}


def _greedy_notes(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Per trace and world size: greedy against exact, and the naive counts beside it."""
    for result in results:
        if (gap := result["greedy_gap"]) is None:
            continue
        naive = [f"{name} +{found['mean']:.1%}" for name, found in gap["naive_max_cost"].items() if found]
        variance = "is not known at this size"
        if gap["variance"]:
            variance = f"+{gap['variance']['mean']:.2%} of the squared maximum on average"
        yield (
            f"{result['trace']} G={result['world_size']} prefix, greedy over exact in {gap['steps']} steps: maximum "
            f"+{gap['max_cost']['max']:.2%} at worst, variance {variance}; naive maximum: {', '.join(naive)}"
        )


def _steps_note(solution: Solution) -> str:
    """Over how many steps the means are taken, why these, and which lines were cut short."""
    whole: dict[int, list[str]] = {}
    short: dict[str, list[str]] = {}
    for line in solution.lines:
        result = line.result
        place = f"{result['trace']} G={result['world_size']}"
        whole.setdefault(line.whole_steps, []).append(place)
        if (steps := int(str(result["steps"]))) < line.whole_steps:
            short.setdefault(place, []).append(f"{result['policy']}{_window(result)} {steps}")
    most = max(whole, key=lambda steps: len(whole[steps]), default=solution.steps)
    others = [f"{place} {steps}" for steps in whole if steps != most for place in dict.fromkeys(whole[steps])]
    text = f"means over {most} steps" + (f" ({', '.join(others)})" if others else "")
    if whole.keys() - {solution.steps}:
        text += f", as {solution.steps} would split a window"
    if short:
        cut = "; ".join(f"{place}: {', '.join(lines)}" for place, lines in short.items())
        text += f", fewer where planning took {LINE_LIMIT_S:g} s (--steps N plans them all): {cut}"
    return text


def _window(result: Mapping[str, Any]) -> str:
    return f" W={result['window']}" if result["window"] > 1 else ""


def _notes(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the columns mean, as far as it applies."""
    yield "* the fastest of the policies that train can run and that keep batches random; costs are per step"
    if any(not _counts(r) and _trains(r) for r in results):
        yield (
            f"spread above {SPREAD_LIMIT:g}: whole steps are sorted by length, so training itself changes "
            "(1 is random batches)"
        )
    if any(r["capacity_violations"] for r in results):
        yield "over capacity: micro-batches that would not fit in memory"
    if weight := next((r["second_weight"] for r in results if r["second_weight"] is not None), None):
        yield f"costs add {weight:g} tokens per unit of the second column, which pad and attend to nothing"
    if any(r["objective"] == "slots" and r["micro_batches"] != 1 for r in results):
        yield "slots: ranks synchronise in every micro-batch, so a step costs the sum over these of the slowest rank's"
    if estimated := [r for r in results if speedup_is_estimated(r)]:
        yield (
            f"{ESTIMATE} estimated from tokens: the probe measured {estimated[0]['fitted_on']} micro-batches, and "
            "others are priced as these; probe with --layout of their own for what they cost"
        )


# The training that follows -------------------------------------------------------------------------------------------


def next_lines(solution: Solution, config: Config, settings: Settings) -> list[str]:
    """For each number of ranks the command that trains so, after what has to be known of it.

    Where nothing is given back, or `train` would cut what was planned longer, that is said in place of commands: what
    is advised has the lengths that the figures are of.
    """
    results: Sequence[Mapping[str, Any]] = [line.result for line in solution.lines]
    if not results:
        return []
    tried = [r for r in results if r["policy"] != "static" and _counts(r)]
    if tried and not any(map(_gains, tried)):
        return ["next     stay with static; on these lengths no policy that keeps batches random is faster"]
    best = best_by_ranks(results)
    name = next(line["trace"] for line in best.values() if line is not None)
    trace = next(trace for trace in solution.traces if trace.name == name)
    longest = int(trace.lengths.max())
    probed = _probed(config, settings)
    most = _positions(trace, config) or longest if probed is None else probed.workload.max_length
    if longest > most:
        why = "the model takes no more" if probed is None else f"{config.probe.run} was probed with no more"
        return [
            f"{name} has samples of up to {longest} tokens; train cuts at {most} ({why}), which has other figures.",
            f"next     the same with --max-length {most}",
        ]
    common = _data(trace, config, most)
    if probed is not None:
        common |= {key: value_of(probed, key) for key in PROBED if not _is_set(config, key)}
    lines = []
    if common.get("workload.data_path") == NO_SAMPLES["workload.data_path"]:
        lines.append(f"{name} holds lengths without samples: FILE below stands for the samples that they are of.")
    for ranks, line in best.items():
        if line is None:
            lines.append(f"On {ranks} ranks stay with static: no policy that keeps batches random is faster.")
            continue
        wanted = common | _plan(line, config) | _ranks(config.launch, ranks)
        wanted |= whole_window_steps(changed(config, wanted))
        words = setting_words("train", solution.run, wanted)
        lines.append(f"next     {next_command('train', *words, root=solution.run.path.parent)}")
    return lines


def _probed(config: Config, settings: Settings) -> Config | None:
    """The configuration of the probe that is planned with; None where none is."""
    if not names_a_probe(config):
        return None
    try:
        return undecided_config(settings.store().resolve(str(config.probe.run)))
    except RecordError:  # a hint is no reason to fail what was solved
        return None


def _is_set(config: Config, key: str) -> bool:
    section, _, name = key.partition(".")
    return name in getattr(config, section).model_fields_set


def _positions(trace: Trace, config: Config) -> int | None:
    """Longest sample that the model to train takes, tokens; None for any, and where only loading it would tell."""
    workload = config.workload
    if trace.positions is not None or workload.runs_own_code or workload.reads_model:
        return trace.positions
    return WORKLOADS[workload.name].sizes[workload.shape].positions


def _data(trace: Trace, config: Config, most: int) -> dict[str, object]:
    """The settings that load the trace's samples at the lengths that were planned, up to `most` tokens."""
    loaded = trace.workload or NO_SAMPLES
    of_lengths = loaded is NO_SAMPLES or loaded["workload.dataset"] == "lengths"
    if of_lengths and options_of(config.workload, FileOptions).data_path is not None:
        loaded = {}  # the samples that the lengths are of are those of the configuration
    else:
        fields = ("dataset", *DATASETS.options(), "tokenizer", "subset")
        loaded = {f"workload.{name}": Workload.model_fields[name].default for name in fields} | dict(loaded)
    known = loaded.get("workload.max_length", config.workload.max_length)
    assert isinstance(known, int)
    longest = int(trace.lengths.max())
    # Where something was cut, training must cut there too; else it must not cut what was planned whole.
    planned = longest if trace.cut_samples else max(known, longest)
    return {**loaded, "workload.max_length": min(max(planned, SHORTEST), most)}


def _plan(best: Mapping[str, Any], config: Config) -> dict[str, object]:
    policy, layout = plan_of(best["policy"])
    # Capacities count samples under one layout and tokens under the other.
    other = {} if layout == config.workload.layout else {"schedule.capacity": None}
    return {
        **other,
        "workload.layout": layout,
        "schedule.mode": "static" if policy == "static" else "dynamic",
        "schedule.policy": policy,
        "schedule.window": best["window"],
        "train.global_batch": best["global_batch"],
    }


def _ranks(launch: Launch, ranks: int) -> dict[str, object]:
    """As many ranks as were planned: as configured where they are, else real ones where this machine can hold them."""
    if launch.launcher == "virtual":
        return {"launch.world_size": ranks}
    if ranks == (launch.world_size if launch.nproc == "auto" else launch.nproc * launch.nnodes):
        return {}
    chosen: dict[str, object] = {"launch.nproc": "auto", "launch.world_size": ranks, "launch.launcher": "auto"}
    if ranks <= _places(launch):
        chosen = {"launch.nproc": ranks, "launch.world_size": None}
    alone = {"launch.nnodes": 1, "launch.node_rank": 0, "launch.rdzv_endpoint": None, "launch.rdzv_id": None}
    return chosen | alone


def _places(launch: Launch) -> int:
    """GPUs that the driver lists, else cores; without torch, which planning does not need."""
    gpus = 0 if launch.device == "cpu" else len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    return gpus or usable_cores()
