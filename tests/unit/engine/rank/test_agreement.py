"""Ranks that were started apart are refused unless they were started alike."""

from __future__ import annotations

import pytest

from dynbench.config.layers import load_config
from dynbench.engine.rank import exchange
from dynbench.errors import ConfigError

CONFIG = load_config(None, [])


def gathered(monkeypatch: pytest.MonkeyPatch, *others: dict[str, str]) -> None:
    """What rank 0 has, and what other ranks have loaded; their configurations agree."""

    def gather(value: object) -> list[object]:
        return [value, *others] if isinstance(value, dict) else [value] * (1 + len(others))

    monkeypatch.setattr(exchange, "gather_objects", gather)
    monkeypatch.setattr(exchange, "digests", lambda: {"mine.py": "a", "theirs": "b"})


def test_nodes_with_the_same_plugins_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered(monkeypatch, {"theirs": "b", "mine.py": "a"})
    exchange.check_same_config(CONFIG)


def test_another_version_and_a_file_that_is_not_loaded_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered(monkeypatch, {"mine.py": "c", "theirs": "b"}, {"mine.py": "a"})
    with pytest.raises(ConfigError) as caught:
        exchange.check_same_config(CONFIG)
    assert list(caught.value.problems) == [
        "nodes disagree in plug-ins: mine.py is a on rank 0, c on rank 1",
        "nodes disagree in plug-ins: theirs is b on rank 0, not loaded on rank 2",
    ]
