"""What a rank's row says of its communication."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dynbench.engine.rank.row_builder import extra_values
from dynbench.wire.traffic import Traffic


@pytest.mark.parametrize(("error", "bytes_sent"), [(None, 51), (0.0, None), (0.3, None)])
def test_what_measures_the_error_of_compression_is_not_held_against_what_was_counted(
    error: float | None, bytes_sent: int | None
) -> None:
    wire = SimpleNamespace(row=lambda: {"grad_rel_error": error})
    replica: Any = SimpleNamespace(strategy=SimpleNamespace(wire=wire, row=dict), row=dict, counted=lambda _: {})
    moment: Any = SimpleNamespace(turn=1)
    synchronised: Any = SimpleNamespace(spans_ns=[], within_ms={})
    found = extra_values(replica, moment, [], 0, Traffic({}, 0.0, 0), synchronised, 51)
    assert (found["bytes_sent"], found["grad_rel_error"]) == (bytes_sent, error)
