"""Whether the replicas of several arms fit into one process beside the largest step of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from dynbench.config.held import copies_held, copies_served, residuals_held
from dynbench.config.ranks import ranks_of
from dynbench.config.schema import Config
from dynbench.engine.planning import load_probe
from dynbench.engine.rank.exchange import gather_objects
from dynbench.errors import ReplicasTooLarge
from dynbench.runs.provenance import UnknownFactError, memory_mb
from dynbench.units import mb

SHARE = 0.5
"""Of the memory, what the replicas may take together where nothing says how much a step needs."""
SHARE_PROBED = 0.1
"""The same where the capacities are probed limits, up to which a step may use all the rest."""


def check_room(configs: Sequence[Config], model: nn.Module, device: torch.device, root: Path | None = None) -> None:
    """Refuse several arms whose replicas do not fit, before the second is built; a collective.

    Args:
        configs: of all arms of the launch.
        model: of the one that was built; the others have such a one.
        device: where it is.
        root: results folder in which a probe run is looked up.

    Raises:
        ReplicasTooLarge: on some rank they do not fit; raised on every rank.
    """
    if len(configs) == 1:
        return
    parameters_mb = mb(sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()))
    replicas_mb = sum(map(_copies, configs)) * parameters_mb
    share = SHARE_PROBED if any(_probed_limits(config, root) for config in configs) else SHARE
    room_mb = min(gather_objects(_room_mb(configs[0], device)))
    if replicas_mb > share * room_mb:
        raise ReplicasTooLarge(
            f"the models of {len(configs)} arms take {replicas_mb:,.0f} MB per rank at rest, more than {share:.0%} of "
            f"{room_mb:,.0f} MB",
            "Launch the arms apart: launches.mode=apart (--launch-mode apart).",
        )


def _copies(config: Config) -> float:
    """Of the parameters, in a rank of an arm that holds most of them."""
    assert isinstance(config.launch.nproc, int), "resolved"
    ranks = ranks_of(config, config.launch.nproc * config.launch.nnodes)
    return max(copies_held(config, ranks) + residuals_held(config), copies_served(config))


def _probed_limits(config: Config, root: Path | None) -> bool:
    """Whether a probe found where memory ends."""
    capacity = config.schedule.capacity
    if not isinstance(capacity, str):
        return False
    tables = load_probe(capacity, "schedule.capacity", root).tables
    return any(most is not None for rows in tables for _, most in rows)


def _room_mb(config: Config, device: torch.device) -> float:
    """Memory for a rank, MB: of its GPU, or its share of what is available; without end where that is not known."""
    if device.type == "cuda":
        return mb(torch.cuda.get_device_properties(device).total_memory)
    ranks = config.launch.nproc
    assert isinstance(ranks, int), "resolved"
    try:
        available = memory_mb()["available"]
    except UnknownFactError:
        return float("inf")
    return float("inf") if available is None else available / ranks
