"""Rules on workloads whose samples are images: the policies and layouts that make sense, and decoding ahead."""

from __future__ import annotations

from collections.abc import Mapping

from dynbench.config.schema import Config
from dynbench.plugins import POLICIES, WORKLOADS, options_of
from dynbench.plugins.policies import PrefixOptions
from dynbench.plugins.workloads import ImageOptions, WorkloadEntry

Problems = Mapping[str, object]
"""Lines on what cannot work, each opening with the dotted key to change, to whether that is so here."""


def known_entry(config: Config) -> WorkloadEntry | None:
    """The workload's entry; None for code of the user's own, which nothing is known of."""
    return None if config.workload.runs_own_code else WORKLOADS[config.workload.name]


def has_lengths(config: Config) -> bool:
    """Whether samples differ in length, as far as is known."""
    entry = known_entry(config)
    return entry is None or entry.lengths is not None


def lengths_are_there(config: Config) -> Problems:
    """Policies and layouts that need samples of different lengths."""
    if has_lengths(config):
        return {}
    policy, workload = config.schedule.policy_name, config.workload
    useful = [name for name, other in POLICIES.items() if other.without_lengths]
    return {
        f"schedule.policy: {policy!r} deals samples by their lengths, and those of {workload.name} have none; "
        f"set it to {' or '.join(useful)}": policy in POLICIES and policy not in useful,
        f"workload.layout: {workload.layout!r} leaves out padding, which samples of {workload.name} do not have; "
        "set it to padded, or name a workload of texts (--workload)": workload.layout != "padded",
    }


def decoding_ahead(config: Config) -> Problems:
    """What images cannot be decoded ahead under."""
    if not (workers := ahead(config)):
        return {}
    said = f"workload.workers: {workers}"
    exchange = options_of(config.schedule, PrefixOptions).exchange
    return {
        f"{said}, but virtual ranks are measured one after another, and what is decoded ahead of one would be in the "
        "time of another; set it to 0, or launch.launcher to torchrun": config.launch.launcher == "virtual",
        f"{said} decode ahead of the step, and schedule.speeds 'auto' plans a step when the one before has been timed; "
        "set workers to 0, or give the speeds": config.schedule.speeds == "auto",
        f"{said} decode ahead of the step, and with schedule.exchange 'gather' every rank is told its samples when the "
        "step begins; set workers to 0, or exchange to replicated": exchange == "gather",
    }


def ahead(config: Config) -> int:
    """Threads of a rank that prepare its next step while it trains; 0 where nothing does."""
    entry = known_entry(config)
    reads = entry is not None and entry.reads("workers")
    return options_of(config.workload, ImageOptions).workers if reads else 0


def image_warnings(config: Config) -> list[str]:
    """What can run and says less than it seems; one line each."""
    entry, policy = known_entry(config), config.schedule.policy_name
    if entry is None or not entry.batch_norm or policy == "static":
        return []
    return [unequal_batch_norm(policy, entry.name)]


def unequal_batch_norm(policy: str, workload: str) -> str:
    """What is warned of where a model with batch norm is trained under a policy that deals unequal numbers."""
    return (
        f"schedule.policy: under {policy!r} ranks may run unequal numbers of samples, and {workload} normalises over "
        "those that run together, on each rank by itself (batch norm), so that only equal numbers train the same: "
        "the losses are not those of static, and are not compared; set schedule.policy to static to have these"
    )
