"""Settings that nothing reads in the situation that they are given for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dynbench.config.describe import default_of
from dynbench.config.effects import EFFECTS
from dynbench.config.schema import Config
from dynbench.config.situation import Situation

if TYPE_CHECKING:
    from dynbench.config.schema import Config


PAIRS = {
    ("train.steps", "train.epochs"): "how long to train",
    ("train.global_batch", "train.batch_per_worker"): "how large a step is",
}
"""A usual setting and another one, which is null where it is not used, and what both say."""
INSTEAD = {
    "solve": {
        "schedule.mode": "--policy",
        "schedule.policy": "--policy",
        "train.steps": "--steps",
        "train.global_batch": "--global-batch or --batch-per-rank",
        "launch.world_size": "--world-size",
    }
}
"""Options of a command that say what a setting says elsewhere."""


def replaced_by(keys: Iterable[str]) -> Iterator[str]:
    """The settings below that those of `keys`, given together, take the place of."""
    given = set(keys)
    for pair in PAIRS:
        yield from (key for key, other in (pair, pair[::-1]) if other in given and key not in given)


def given_twice(keys: Iterable[str]) -> Iterator[str]:
    """What is wrong with `keys`, given together: a line for each pair of which both are there."""
    given = set(keys)
    for (one, other), both in PAIRS.items():
        if one in given and other in given:
            yield f"{other}: given beside {one}, and both say {both}; leave one of them out"


def left_unsaid(config: Config) -> set[str]:
    """Of each pair, the setting that the other one stands for: what follows from it, or has no value."""
    return {usual if _value(config, other) is not None else other for usual, other in PAIRS}


def _value(config: Config, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def unread(situations: Sequence[Situation]) -> list[str]:
    """A line for every setting that was changed and that decides nothing; those beyond a command's scope share one.

    Args:
        situations: of one command. A value counts as read where it is read in any situation that has it, so that arms
            may share what only some of them need.
    """
    lines, beyond = [], []
    for key, effect in EFFECTS.items():
        default = default_of(key)
        for value in _distinct([_given_value(s.given, key) for s in situations]):
            having = [s for s in situations if _given_value(s.given, key) == value]
            if value == default or any(effect.is_read(s) for s in having):
                continue
            first = having[0]
            if effect.in_scope(first):
                facts = {"ranks": first.ranks, **_choices(having)}
                lines.append(f"{key}: {value!r} has no effect: {effect.otherwise.format_map(facts)}")
            else:
                beyond.append(f"{key}{_instead(first, key)}")
    if beyond:
        lines.append(f"{', '.join(beyond)}: no effect on `dynbench {situations[0].command}`, which does not read this")
    return lines


def _choices(situations: Sequence[Situation]) -> dict[str, str]:
    """Kind of plug-in to the names of those that run; of the policies, those of all situations."""
    config = situations[0].config
    policies = dict.fromkeys(entry.name for situation in situations for entry in situation.planned)
    return {
        "policy": ", ".join(policies),
        "workload": config.workload.name,
        "dataset": config.workload.dataset,
        "strategy": config.sync.name,
        "compressor": config.compress.name,
        "of_virtual_ranks": "" if situations[0].real_ranks else " of virtual ranks, which send no gradients,",
    }


def _instead(situation: Situation, key: str) -> str:
    option = INSTEAD.get(situation.command, {}).get(key)
    if option is None and situation.command == "solve" and "data" in EFFECTS[key].commands.split():
        option = "name a data set, --dataset"
    return f" ({option})" if option else ""


def _given_value(config: Config, key: str) -> object:
    """What was asked for; a mode that only follows from a policy was not."""
    if key == "schedule.mode" and config.schedule.policy is not None:
        return default_of(key)
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _distinct(values: Sequence[object]) -> list[object]:
    """The values, each once; mappings are among them, which no set holds."""
    return [value for index, value in enumerate(values) if value not in values[:index]]
