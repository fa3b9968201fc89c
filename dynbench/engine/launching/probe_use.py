"""Whether a run may use the probe that it names, and what it should know about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynbench.config.part_rules import buffer_size
from dynbench.config.ranks import Ranks, parameter_copies, ranks_of
from dynbench.config.schema import Config, Workload, changed, decided
from dynbench.config.unread import Use
from dynbench.engine.planning import least_capacity_warning, load_probe, names_a_probe
from dynbench.plugins import DATASETS, WORKLOADS, options_of
from dynbench.plugins.workloads import ImageOptions
from dynbench.runs.probe_record import ProbeRecord
from dynbench.runs.provenance import UnknownFactError, cpu_model
from dynbench.schedule.partition_unequal import distinct_speeds
from dynbench.workloads.own_code import registered_code

PROBE_AGAIN = "Probe again with this run's settings (dynbench probe --name NAME, then --probe NAME), or name no probe."


_READ_BY_OWN = ("code_digest", "dataset", "model", "size", "tokenizer")
"""What code of the user's own may make a model of."""


def device_name(device: str, gpu_names: Sequence[str]) -> str | None:
    """The GPUs' names, each once, or the processor's; None where they are unknown."""
    if device == "cuda":
        return " and ".join(sorted(set(gpu_names))) or None
    try:
        return cpu_model()
    except (UnknownFactError, OSError):
        return None


def measured_settings(workload: Workload) -> dict[str, object]:
    """What of a workload decides a step's memory and time; settings without effect are left out.

    `vocabulary` is what the data's tokens come from: random weights of size `small` have an embedding of its size.

    Raises:
        UsageError: a registered workload of the user's own that cannot be loaded.
    """
    settings: dict[str, object] = {key: getattr(workload, key) for key in ("name", "weights", "dropout", "max_length")}
    if workload.runs_own_code:
        settings |= {key: getattr(workload, key) for key in _READ_BY_OWN}
        if workload.is_own:
            return settings
        entry = WORKLOADS.find(workload.name)  # registered: its options as a record holds them, and its file's digest
        options = options_of(workload, entry.options).model_dump(mode="json")
        return {**settings, "code_digest": registered_code(workload.name, entry.load()).digest, **options}
    if WORKLOADS[workload.name].reads("image_size"):
        settings["image_size"] = options_of(workload, ImageOptions).image_size
    if workload.weights == "pretrained":
        return settings | {"model": workload.model}
    vocabulary = workload.tokenizer_name if DATASETS[workload.dataset].of_texts else "generated"
    shaped = settings | {"size": workload.shape} | ({"model": workload.model} if workload.shape == "model" else {})
    return shaped if workload.shape == "base" else shaped | {"vocabulary": vocabulary}


def same_slowdown(config: Config, probe: ProbeRecord) -> bool:
    """Whether the speeds that a probe measured are those of this run's ranks, as far as is known."""
    return probe.slowdown is None or probe.slowdown == dict(config.launch.slowdown)


def probe_problems(config: Config, asked: Config, workers: int, device_name: str | None, root: Path) -> list[str]:
    """Why a run must not use the probes that it names, a line for each setting that differs; empty when it may.

    A run may have shorter samples than were probed, another global batch, and other threads: plans need costs in
    proportion only. Capacities and speeds have rules of their own about the number of ranks.

    Args:
        config: resolved.
        asked: settings as given by the user.
        workers: ranks that train (G).
        device_name: the accelerators or the processor; None where they have none.
        root: results folder in which probe runs are looked up.

    Raises:
        RunLookupError: no such run.
        RecordError: a run that is no probe.
    """
    capacity = config.schedule.capacity
    named = {"probe.run": config.probe.run} if names_a_probe(config) else {}
    if isinstance(capacity, str) and capacity not in named.values():
        named["schedule.capacity"] = capacity
    plans_with_speeds = Use(asked, asked).plans_with_speeds and asked.schedule.speeds is None
    problems = []
    for key, reference in named.items():
        probe = load_probe(reference, key, root)
        pairs = _compared(config, probe, device_name)
        if reference == capacity:
            pairs |= _room_compared(config, probe, workers)
        takes_speeds = key == "probe.run" and plans_with_speeds and len(probe.speeds) == workers
        if takes_speeds and not same_slowdown(config, probe):
            pairs["launch.slowdown"] = (dict(config.launch.slowdown), probe.slowdown)
        problems += [
            f"{setting}: {ours!r}, but {key} {reference} was made with {theirs!r}"
            for setting, (ours, theirs) in pairs.items()
            if ours != theirs
        ]
    return problems


Pairs = dict[str, tuple[object, object]]
"""Setting to its value in a run and in the probe."""


def _compared(config: Config, probe: ProbeRecord, device_name: str | None) -> Pairs:
    launch = config.launch
    pairs: Pairs = {
        "launch.device": (launch.device, probe.device),
        "train.precision": (config.train.precision, probe.precision),
        "workload.pad_to_multiple_of": (config.workload.pad_to_multiple_of, probe.pad_to_multiple_of),
        "workload.layout": (config.workload.layout, probe.layout),
    }
    if device_name is not None and probe.device_name is not None and launch.device == probe.device:
        pairs["device"] = (device_name, probe.device_name)
    for key, ours in measured_settings(config.workload).items():
        theirs = probe.workload.get(key, ours)
        if key != "max_length" or (isinstance(ours, int) and isinstance(theirs, int) and ours > theirs):
            pairs[f"workload.{key}"] = (ours, theirs)
    return pairs


def _room_compared(config: Config, probe: ProbeRecord, workers: int) -> Pairs:
    """What says that a run's ranks have as much room as those whose capacities were probed."""
    nproc = decided(config.launch.nproc)
    training = min(nproc, workers)  # processes of one machine, which would share what fewer were probed with
    pairs = _held_beyond(config, probe, workers)
    if config.launch.device == "cpu" and training > len(probe.tables):
        number = "launch.nproc" if training == nproc else "workers of launch.nproc"
        return {number: (training, len(probe.tables)), **pairs}
    return pairs


def _held_beyond(config: Config, probe: ProbeRecord, workers: int) -> Pairs:
    """Why ranks of a run hold more of the parameters than those did whose room was probed; empty where they do not."""
    servers = ranks_of(config, 0).servers
    ours = parameter_copies(config, Ranks(workers + servers, servers), in_step=True)
    theirs = probe.copies_held
    if theirs is None:  # of records of ddp that did not say
        theirs = parameter_copies(changed(config, {"sync.name": probe.sync}), Ranks(probe.world_size), in_step=True)
    if ours <= theirs * (1 + 1e-9):
        return {}
    if config.sync.name != probe.sync:
        return {"sync.name": (config.sync.name, probe.sync)}
    as_many = parameter_copies(config, Ranks(probe.world_size + servers, servers), in_step=True)
    if as_many <= theirs * (1 + 1e-9):
        return {"workers": (workers, probe.world_size)}
    return {"copies of the parameters in a rank (train.optimizer, sync.*)": (round(ours, 3), round(theirs, 3))}


def probe_warnings(config: Config, workers: int, root: Path, *, attached: bool = False) -> list[str]:
    """What a run's use of a probe, or its want of one, leaves open; one line each.

    Args:
        config: resolved.
        workers: ranks that train (G).
        root: results folder in which probe runs are looked up.
        attached: torchrun or srun has started the ranks.
    """
    schedule, warnings = config.schedule, []
    unprobed = config.launch.device == "cuda" and config.probe.run is None and schedule.capacity is None
    if unprobed and schedule.mode == "dynamic" and (attached or config.launch.nnodes > 1):
        warnings.append(
            "probe.run: null, and no probe is made by itself inside torchrun or srun, or on several nodes: planned "
            f"with cost {schedule.cost_type!r} and without capacities; probe first (--probe RUN), or set --probe off"
        )
    if names_a_probe(config) and schedule.speeds is None:
        speeds = load_probe(config.probe.run, "probe.run", root).speeds
        if len(speeds) != workers and distinct_speeds(speeds) is not None:
            warnings.append(
                f"schedule.speeds: probe.run {config.probe.run} measured {len(speeds)} ranks of unequal speed, this "
                f"run has {workers}: planned with equal speeds; probe with as many ranks, or give the speeds"
            )
    if isinstance(schedule.capacity, str):
        probe = load_probe(schedule.capacity, "schedule.capacity", root)
        warnings += least_capacity_warning(schedule.capacity, probe, config)
        tested = probe.tested_without_limit
        largest = _largest_micro_batch(config, workers)
        if tested is not None and largest > tested[0]:
            warnings.append(
                f"schedule.capacity: {schedule.capacity} tested up to {tested[0]} samples at length {tested[1]} and "
                f"found no limit; this run may plan up to {largest}, of which nothing is known; probe with "
                f"--global-batch {config.train.global_batch}"
            )
    return warnings


def _largest_micro_batch(config: Config, workers: int) -> int:
    """Samples of the largest micro-batch that a plan of fixed batches can hold, whatever the lengths."""
    schedule, batch = config.schedule, config.train.global_batch
    parts = 1 if schedule.micro_batches == "auto" else schedule.micro_batches
    if schedule.policy_name == "static":
        return -(-batch // (workers * parts))
    largest = batch - workers * parts + 1
    return min(largest, buffer_size(config, workers)) if schedule.policy_name == "prefix" else largest
