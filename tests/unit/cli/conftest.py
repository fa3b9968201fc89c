"""Tests of commands; the figures' own tests render them."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _figures(unrendered: None) -> None:
    """None is rendered."""
