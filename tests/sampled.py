"""Families of tests of which `make test` runs a sample, and `make test-matrix` all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def matrix(*values: object) -> Any:
    """Parameters that only `make test-matrix` runs."""
    return pytest.param(*values, marks=pytest.mark.matrix)


def sampled(cases: Iterable[Any], sample: Collection[Any]) -> list[Any]:
    """All cases of one parameter, or of several as tuples; those that are not of the sample marked `matrix`."""
    return [case if case in sample else matrix(*(case if isinstance(case, tuple) else (case,))) for case in cases]
