"""What runs on GPUs mixes no tensors of two devices and reads no values: tried on an accelerator that is none."""

from __future__ import annotations

import json
import subprocess
import sys

import fake_accelerator
import pytest
import torch.utils.backend_registration
from compressors import NAMED
from fake_accelerator import CASES, COMPRESSORS_LEFT_OUT, NAME, PLANTED, SETUP, STRATEGIES_LEFT_OUT
from forked import ForkedPopen

from dynbench.plugins import COMPRESSORS, STRATEGIES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("fake accelerator"),
    pytest.mark.skipif(
        not hasattr(torch.utils.backend_registration, SETUP),
        reason=f"this torch has no {SETUP}, which is experimental",
    ),
]


@pytest.fixture(scope="module")
def raised() -> dict[str, str | None]:
    """What each case raised, in a process of their own, as what is registered stays so."""
    program = ForkedPopen(
        [sys.executable, fake_accelerator.__file__], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines, wrong = program.communicate(timeout=300)
    assert program.returncode == 0, wrong
    return dict(map(json.loads, lines.splitlines()))


@pytest.mark.parametrize("case", CASES)
def test_all_stays_on_the_accelerator(case: str, raised: dict[str, str | None]) -> None:
    assert raised[case] is None, raised[case]


def test_a_tensor_of_the_host_is_found(raised: dict[str, str | None]) -> None:
    found = raised[PLANTED]
    assert found is not None and f"{NAME}:0" in found and "cpu" in found and "in encode" in found


def test_every_compressor_and_strategy_is_tried_or_left_out_by_name() -> None:
    tried = {case.split()[1] for case in CASES if case.startswith(("compress ", "sync "))}
    left_out = COMPRESSORS_LEFT_OUT.keys() | STRATEGIES_LEFT_OUT.keys()
    assert tried.isdisjoint(left_out)
    whole = {name for name in (*COMPRESSORS.entries, *STRATEGIES.entries) if "+" not in name}
    assert tried | left_out == whole and set(NAMED) < set(COMPRESSORS.entries)
