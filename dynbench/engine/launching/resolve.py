"""Every `auto` of a configuration decided for this machine, each with its reason; what settings are warned about."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from dynbench.config.part_rules import batch_problem, buffer_size, with_global_batch
from dynbench.config.ranks import ranks_of
from dynbench.config.rules import DEFAULT_VIRTUAL_RANKS, check_rules, makes_probe, rule_warnings
from dynbench.config.schema import Config, changed
from dynbench.config.unread import Use
from dynbench.engine import planning
from dynbench.engine.comm_model import build_comm_model, resolve_comm_model
from dynbench.engine.launching import auto_settings
from dynbench.engine.launching.auto_settings import Decisions, Reason
from dynbench.engine.launching.probe_use import PROBE_AGAIN, device_name, probe_problems, probe_warnings, same_slowdown
from dynbench.engine.rank.evaluation import check_scalars
from dynbench.errors import ConfigError, UsageError
from dynbench.plugins import POLICIES, options_of
from dynbench.plugins.policies import PrefixOptions
from dynbench.runs.provenance import usable_cores
from dynbench.runs.store import RunStore
from dynbench.schedule.policy import check_trainable
from dynbench.workloads.own_code import own_code_settings

MOST_CPU_RANKS = 4
LEAST_CPU_RANKS = 2
GPU_PAD_MULTIPLE = 8
_BF16_CAPABILITY = 8
"""Compute capability from which NVIDIA GPUs multiply bf16 matrices natively (Ampere)."""

_log = logging.getLogger(__name__)
_NO_BF16 = ("fp16", "the GPUs do not multiply bf16 natively")
_LIST_GPUS = (
    "import json, torch; print(json.dumps([[p.name, p.major] for p in"
    " map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))]))"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What decisions depend on."""

    cores: int
    """Cores that this process may use at once."""
    gpus: int
    bf16: bool
    """Whether all GPUs multiply bf16 natively."""
    ranks_given: tuple[int, int] | None = None
    """(ranks on this node, ranks in all) where torchrun or srun has started the ranks already."""
    gpu_fault: str | None = None
    """Why the GPUs that the driver lists cannot be used."""
    gpu_names: tuple[str, ...] = ()
    """One per GPU."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration without `auto`, and why it is so."""

    config: Config
    world_size: int
    """Ranks, virtual ones counted."""
    workers: int
    """Those of them that train (G)."""
    decisions: Mapping[str, Reason]
    """Dotted key to value and reason, of every `auto` or null that was decided."""
    device_name: str | None = None
    """The accelerators, or the processor of a run on the CPU."""


def resolve(config: Config, machine: Machine, store: RunStore) -> Resolved:
    """Decide what the configuration leaves open, then check the rules that need the number of ranks.

    Raises:
        ConfigError: every broken rule, and every setting that differs from those of a probe that is named.
        UsageError: a GPU is wanted where there is none, a policy that cannot train, or a workload of the user's own
            that cannot be used; scalars for TensorBoard without its package.
        RunLookupError: a probe run that is not in the registry.
        RecordError: a run that is named as a probe and is none.
    """
    check_trainable(config.schedule.policy_name)
    check_scalars(config)
    found = Decisions(config)
    device = _device(found, machine)
    virtual = _launcher(found, machine, device) == "virtual"
    nproc, world_size = _ranks(found, machine, device, virtual=virtual)
    workers = ranks_of(config, world_size).workers
    _size_batch(found, workers)
    found.changes |= {
        "launch.device": device,
        "launch.launcher": "virtual" if virtual else "torchrun",
        "launch.nproc": nproc,
        "launch.nnodes": 1 if virtual else max(1, world_size // nproc),
        "launch.world_size": world_size if virtual else None,
    }
    _threads(found, machine, world_size if virtual else nproc)
    if virtual:
        _comm_model(found, store)
    _precision(found, machine, device)
    auto_settings.decide_learning_rate(found)
    auto_settings.decide_steps(found)
    _pad_multiple(found, device)
    auto_settings.decide_shape(found)
    auto_settings.decide_image_size(found)
    auto_settings.decide_error_feedback(found)
    found.changes |= {f"workload.{name}": value for name, value in own_code_settings(config.workload).items()}
    _schedule(found, store, workers)
    resolved = changed(found.config, found.changes)
    # Rendezvous flags are what torchrun or srun have seen to already, where they started the ranks.
    attached = {} if machine.ranks_given is None else {"launch.nnodes": 1, "launch.node_rank": 0}
    problems = check_rules(changed(resolved, attached), world_size)
    hardware = device_name(device, machine.gpu_names)
    mismatches = probe_problems(resolved, found.config, workers, hardware, store.root)
    if config.probe.run == "auto" and machine.ranks_given is not None:
        problems.append("probe.run: auto, but torchrun or srun has started the ranks; probe once, name that run")
    if problems or mismatches:
        raise ConfigError([*problems, *mismatches], PROBE_AGAIN if mismatches else "")
    return Resolved(resolved, world_size, workers, found.reasons, hardware)


def _device(found: Decisions, machine: Machine) -> str:
    launch = found.config.launch
    if machine.gpu_fault is not None and launch.device != "cpu":
        if launch.device == "auto" and machine.ranks_given is None and launch.nnodes == 1:  # others may have GPUs
            _warn_of_cpu(machine.gpu_fault)
            return found.decide("launch.device", "cpu", f"the GPUs cannot be used: {machine.gpu_fault}")
        mend = "Mend the driver, or set launch.device=cpu (--device cpu)."
        raise UsageError(f"the GPUs cannot be used: {machine.gpu_fault}", mend)
    if launch.device == "cuda" and machine.gpus == 0:
        raise UsageError("launch.device: cuda, but torch sees no GPU", "Set launch.device=cpu.")
    if launch.device != "auto":
        return launch.device
    return found.decide("launch.device", "cuda" if machine.gpus else "cpu", f"torch sees {machine.gpus} GPUs")


def _launcher(found: Decisions, machine: Machine, device: str) -> str:
    key, launch = "launch.launcher", found.config.launch
    if machine.ranks_given is not None:
        if launch.launcher == "virtual":
            raise UsageError(
                "launch.launcher: virtual inside torchrun or srun, which have started real ranks",
                "Start dynbench by itself.",
            )
        return found.decide(key, "torchrun", "started by torchrun or srun")
    if launch.launcher != "auto":
        return launch.launcher
    one_node, open_ranks = launch.nnodes == 1, launch.nproc == "auto"
    several = open_ranks or (launch.world_size is not None and launch.nproc != 1)
    if device == "cuda" and machine.gpus == 1 and several and one_node:
        return found.decide(key, "virtual", "one GPU cannot hold several real ranks")
    if launch.world_size is not None and one_node and open_ranks:
        return found.decide(key, "virtual", "launch.world_size asks for virtual ranks")
    return found.decide(key, "torchrun", "real ranks")


def _ranks(found: Decisions, machine: Machine, device: str, *, virtual: bool) -> tuple[int, int]:
    """Processes on this node, and ranks in all."""
    launch = found.config.launch
    if machine.ranks_given is not None:
        here = machine.ranks_given[0]
        one_each = "SLURM_LOCALID" in os.environ and machine.gpus == 1  # srun shows each task its own GPU only
        if device == "cuda" and here > machine.gpus and not one_each:
            raise UsageError(
                f"{here} ranks were started on this node, which has {machine.gpus} GPUs",
                "Start one rank per GPU, or set launch.device=cpu.",
            )
        return machine.ranks_given
    if virtual:
        default = "the default number of virtual ranks"
        return 1, launch.world_size or found.decide("launch.world_size", DEFAULT_VIRTUAL_RANKS, default)
    if launch.nproc != "auto":
        if device == "cuda" and launch.nproc > machine.gpus:
            raise UsageError(
                f"launch.nproc: {launch.nproc} ranks for {machine.gpus} GPUs",
                f"Each rank needs a GPU of its own: use --device cpu, or {machine.gpus} ranks; "
                "where only schedules differ, launch.launcher=virtual plays them on one GPU.",
            )
        nproc = launch.nproc
    elif device == "cuda":
        nproc = found.decide("launch.nproc", machine.gpus, "one rank per GPU")
    else:
        nproc = max(LEAST_CPU_RANKS, min(MOST_CPU_RANKS, machine.cores))
        found.decide("launch.nproc", nproc, f"{machine.cores} usable cores; from 2 to 4 ranks on a CPU")
    return nproc, nproc * launch.nnodes


def _size_batch(found: Decisions, workers: int) -> None:
    train = found.config.train
    if problem := batch_problem(train, workers):
        raise ConfigError([problem])
    found.config = with_global_batch(found.config, workers)
    if train.batch_per_worker is not None:
        reason = f"train.batch_per_worker on {workers} workers"
        found.decide("train.global_batch", found.config.train.global_batch, reason)


def _threads(found: Decisions, machine: Machine, sharing: int) -> None:
    if found.config.launch.threads == "auto":
        reason = f"{machine.cores} usable cores over {sharing} virtual or real ranks on this node"
        found.decide("launch.threads", max(1, machine.cores // sharing), reason)


def _comm_model(found: Decisions, store: RunStore) -> None:
    given = found.config.launch.comm_model
    meant = resolve_comm_model(given, store)
    build_comm_model(meant, store.root)  # what is wrong with it is reported here, not by the rank
    if meant != given:
        found.decide("launch.comm_model", meant, f"run meant by {given!r}")


def _precision(found: Decisions, machine: Machine, device: str) -> None:
    wanted = found.config.train.precision
    if wanted != "auto" and device == "cpu" and wanted != "fp32":
        raise UsageError(f"train.precision: {wanted} needs a GPU, this run is on the CPU", "Set train.precision=fp32.")
    if wanted == "auto":
        native = ("bf16", "the GPUs multiply bf16 natively") if machine.bf16 else _NO_BF16
        found.decide("train.precision", *(("fp32", "on a CPU") if device == "cpu" else native))


def _pad_multiple(found: Decisions, device: str) -> None:
    if found.config.workload.pad_to_multiple_of == "auto":
        on_gpu = GPU_PAD_MULTIPLE, "matrix units want multiples of 8"
        found.decide("workload.pad_to_multiple_of", *((1, "on a CPU") if device == "cpu" else on_gpu))


def _schedule(found: Decisions, store: RunStore, workers: int) -> None:
    config, schedule = found.config, found.config.schedule
    if schedule.policy is None:
        found.decide("schedule.policy", schedule.policy_name, f"schedule.mode is {schedule.mode}")
    if schedule.policy_name == "prefix" and options_of(schedule, PrefixOptions).buffer == "auto":
        found.decide("schedule.buffer", buffer_size(config, workers), "max(32, B - G + 1)")
    if schedule.cost_type == "auto":
        found.decide("schedule.cost_type", *planning.default_cost_type(config))
    if schedule.micro_batches != 1 and schedule.objective == "auto":
        found.decide("schedule.objective", *planning.default_objective(config))
    if isinstance(schedule.capacity, str):
        run = planning.find_run(store, "schedule.capacity", schedule.capacity)
        found.decide("schedule.capacity", run.id, f"run meant by {schedule.capacity!r}")
    if not planning.names_a_probe(config):
        return
    run = planning.find_run(store, "probe.run", str(config.probe.run))
    measured = f"measured by probe.run, {config.probe.run}"
    found.changes["probe.run"] = run.id
    if schedule.capacity is None and POLICIES[schedule.policy_name].capped:
        found.decide("schedule.capacity", run.id, measured)
    if schedule.speeds is None:
        probe = planning.load_probe(run.id, "probe.run", store.root)
        speeds = planning.probe_speeds(probe, workers)
        if speeds is not None and same_slowdown(config, probe):
            found.decide("schedule.speeds", tuple(round(speed, 4) for speed in speeds.tolist()), measured)


@cache
def _warn_of_cpu(fault: str) -> None:
    """Once, however many arms are resolved."""
    _log.warning("the GPUs cannot be used, all is computed on the CPU: %s; `dynbench doctor` says more", fault)


@cache
def this_machine() -> Machine:
    """Cores and GPUs of this machine.

    GPUs are looked up by a process of its own: a CUDA context in the launcher would hold memory that is measured.
    """
    cores = usable_cores()
    if torch.cuda.device_count() == 0:
        return Machine(cores=cores, gpus=0, bf16=False)
    answer = subprocess.run([sys.executable, "-c", _LIST_GPUS], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        *_, reason = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        return Machine(cores=cores, gpus=0, bf16=False, gpu_fault=reason)
    gpus = json.loads(answer.stdout)
    names = tuple(name for name, _ in gpus)
    return Machine(cores, len(gpus), bf16=all(major >= _BF16_CAPABILITY for _, major in gpus), gpu_names=names)


def use_of(given: Config, resolved: Resolved, *, attached: bool = False) -> Use:
    """What a command that launches ranks is about to do with its settings.

    Args:
        given: the settings as given by the user.
        resolved: what they were decided to mean.
        attached: torchrun or srun has started the ranks.
    """
    config = resolved.config
    probes = not attached and makes_probe(given, on_gpus=config.launch.device == "cuda")
    return Use(given, config, resolved.world_size, attached=attached, probes=probes)


def launch_warnings(asked: Config | None, resolved: Resolved, root: Path, *, attached: bool = False) -> list[str]:
    """What a training run is warned about.

    Args:
        asked: the settings as given by the user, to name those that nothing reads; None where that has been done.
        resolved: what they were decided to mean.
        root: results folder in which a probe run is looked up.
        attached: torchrun or srun has started the ranks.
    """
    uses = [] if asked is None else [use_of(asked, resolved, attached=attached)]
    return [
        *rule_warnings(resolved.config, resolved.world_size, uses),
        *probe_warnings(resolved.config, resolved.workers, root, attached=attached),
    ]
