"""What follows from a solution: training with the policy that gave back most, on the same samples and as many ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynbench.cli.next_command import next_command, setting_words
from dynbench.cli.options import Settings
from dynbench.cli.solve_view import best_by_ranks, gives_back_nothing
from dynbench.config.digest import changed, value_of
from dynbench.config.part_rules import whole_window_steps
from dynbench.config.schema import Config, Launch, Workload
from dynbench.engine.planning import names_a_probe
from dynbench.errors import RecordError
from dynbench.experiment.solve_run import Solution
from dynbench.experiment.trace_sources import asked_config
from dynbench.plugins import DATASETS, WORKLOADS, options_of
from dynbench.plugins.datasets import FileOptions
from dynbench.plugins.policies import plan_of
from dynbench.runs.provenance import usable_cores
from dynbench.schedule.traces import Trace

SHORTEST = 2
"""The least that `workload.max_length` takes, tokens."""
PROBED = (
    *("workload.weights", "workload.model", "workload.size", "workload.dropout", "workload.pad_to_multiple_of"),
    *("train.precision", "launch.device", "launch.slowdown"),
)
"""Settings in which training must not differ from the probe that it uses."""
NO_SAMPLES = {"workload.dataset": "tsv", "workload.data_path": "FILE"}
"""Stands for the samples of a trace that holds lengths only: FILE is for the user to fill in."""
Result = Mapping[str, Any]


def next_lines(solution: Solution, config: Config, settings: Settings) -> list[str]:
    """For each number of ranks the command that trains so, after what has to be known of it.

    Where nothing is given back, or `train` would cut what was planned longer, that is said in place of commands: what
    is advised has the lengths that the figures are of.
    """
    results: Sequence[Result] = [line.result for line in solution.lines]
    if not results:
        return []
    if gives_back_nothing(results):
        return ["Next: stay with static; on these lengths no policy that keeps the batches random gives back anything"]
    best = best_by_ranks(results)
    name = next(line["trace"] for line in best.values() if line is not None)
    trace = next(trace for trace in solution.traces if trace.name == name)
    probed = _probed(config, settings)
    longest = int(trace.lengths.max())
    most = _positions(trace, config) or longest if probed is None else probed.workload.max_length
    if longest > most:
        why = "the model takes no more" if probed is None else f"{config.probe.run} was probed with no more"
        return [
            f"{name} has samples of up to {longest} tokens; train cuts at {most} ({why}), which has other figures.",
            f"Next: the same with --max-length {most}",
        ]
    common = _data(trace, config, most)
    if probed is not None:
        common |= {key: value_of(probed, key) for key in PROBED if not _is_set(config, key)}
    lines = []
    if common.get("workload.data_path") == NO_SAMPLES["workload.data_path"]:
        lines.append(f"{name} holds lengths without samples: FILE below stands for the samples that they are of.")
    for ranks, line in best.items():
        if line is None:
            lines.append(
                f"On {ranks} ranks stay with static: no policy that keeps the batches random gives back anything."
            )
            continue
        wanted = common | _plan(line, config) | _ranks(config.launch, ranks)
        wanted |= whole_window_steps(changed(config, wanted))
        words = setting_words("train", solution.run, wanted)
        lines.append(f"Next: {next_command('train', *words, root=solution.run.path.parent)}")
    return lines


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
    kept = longest if trace.cut_samples else max(known, longest)
    return {**loaded, "workload.max_length": min(max(kept, SHORTEST), most)}


def _probed(config: Config, settings: Settings) -> Config | None:
    """What the probe that is planned with was asked for; None where none is."""
    if not names_a_probe(config):
        return None
    try:
        return asked_config(settings.store().resolve(str(config.probe.run)))
    except RecordError:  # a hint is no reason to fail what was solved
        return None


def _is_set(config: Config, key: str) -> bool:
    section, _, name = key.partition(".")
    return name in getattr(config, section).model_fields_set


def _plan(best: Result, config: Config) -> dict[str, object]:
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
