"""Benchmarks are commands too."""

from __future__ import annotations

from unit.cli.conftest import cli as cli
