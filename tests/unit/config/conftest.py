"""What configurations and recipes are refused for."""

from __future__ import annotations

from collections.abc import Callable

from dynbench.errors import ConfigError


def refused(load: Callable[..., object], *given: object, **options: object) -> list[str]:
    """What is wrong with what is loaded; empty where nothing is."""
    try:
        load(*given, **options)
    except ConfigError as error:
        return list(error.problems)
    return []
