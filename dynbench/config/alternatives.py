"""Settings that say the same thing in two ways: one given later takes the place of the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynbench.config.schema import Config

PAIRS = {
    ("train.steps", "train.epochs"): "how long to train",
    ("train.global_batch", "train.batch_per_worker"): "how large a step is",
}
"""A usual setting and another one, which is null where it is not used, and what both say."""


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
