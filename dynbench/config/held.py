"""What a rank holds of the parameters beside its activations, in copies of them, by its strategy and optimizer."""

from __future__ import annotations

from dynbench.config.ranks import Ranks
from dynbench.config.schema import Config
from dynbench.plugins import COMPRESSORS, STRATEGIES, options_of
from dynbench.plugins.compressors import FeedbackOptions
from dynbench.plugins.strategies import DilocoOptions, FsdpOptions


def moments(config: Config) -> int:
    """Numbers that the optimizer keeps for each parameter."""
    if config.train.optimizer == "sgd":
        return int(config.train.momentum > 0)
    return 2


def copies_held(config: Config, ranks: Ranks, *, in_step: bool = False) -> float:
    """Of a rank that trains: weights, gradients, the optimizer's moments, and what the strategy keeps besides.

    What a compressor keeps is not among them: see `residuals_held`.

    Args:
        config: its strategy and optimizer.
        ranks: over which some strategies divide.
        in_step: with what the strategy makes within a step.
    """
    entry, kept = STRATEGIES.find(config.sync.name), moments(config)
    made = entry.in_step + (entry.reads("reshard") and not options_of(config.sync, FsdpOptions).reshard)
    on_its_way = entry.reads("overlap_steps") and options_of(config.sync, DilocoOptions).overlap_steps > 0
    whole = entry.whole + on_its_way + kept * (entry.moments == "whole") + made * in_step
    return whole + (entry.divided + kept * (entry.moments == "divided")) / max(1, ranks.workers)


def copies_served(config: Config) -> float:
    """Of a rank that serves, within a step; 0 where none does."""
    entry = STRATEGIES.find(config.sync.name)
    return entry.served + moments(config) if entry.servers else 0.0


def residuals_held(config: Config) -> int:
    """Of a rank that trains: what its compressor left out; 0 where that is not known, of a user's own class."""
    entry = COMPRESSORS.get(config.compress.name)
    if entry is None or not entry.reads("error_feedback"):
        return 0
    asked = options_of(config.compress, FeedbackOptions).error_feedback
    return int(entry.feedback if asked == "auto" else asked)


def held_said(config: Config, ranks: Ranks) -> str:
    """What memory of ranks is of, in words."""
    entry, copies = STRATEGIES.find(config.sync.name), copies_held(config, ranks)
    said = f"{entry.name}, under which a rank holds {copies:.3g} copies of the parameters between steps"
    if entry.moments == "divided":
        what = "the optimizer's state" if entry.whole else "parameters, gradients and the optimizer's state"
        said += f", with {what} divided by {ranks.workers} ranks"
    if entry.moments == "served":
        said += ", and the server the optimizer's state"
    if COMPRESSORS.find(config.compress.name).compresses:
        said += f"; and what compress.name {config.compress.name} keeps"
    return said
