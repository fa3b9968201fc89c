"""What a trial runs is what training runs: padded samples, and lengths that padding reaches."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dynbench.config.layers import load_config
from dynbench.engine.rank.memory import MemoryNow
from dynbench.errors import NothingFits, UsageError
from dynbench.probe import trial
from dynbench.probe.children import served_mb
from dynbench.probe.prober import _length_grid
from dynbench.probe.trial import TrialStep
from dynbench.workloads.registry import build_workload


def test_every_sample_is_padded_so_that_the_attention_keeps_its_mask() -> None:
    training = ("train.precision=fp32", "train.learning_rate=5e-4", "train.global_batch=8")
    config = load_config(
        None, [*training, "workload.size=small", "workload.subset=64", "workload.pad_to_multiple_of=1"]
    )
    workload = build_workload(config)
    seen = []

    class Seeing:
        def __getattr__(self, name: str) -> object:
            return getattr(workload, name)

        def loss(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            seen.append(inputs["attention_mask"])
            return workload.loss(model, inputs)

    TrialStep(config, Seeing(), torch.device("cpu")).step(3, 40)
    (mask,) = seen
    assert mask.shape == (3, 40)
    assert np.array_equal(mask.sum(dim=1), [39, 39, 39])


@pytest.mark.parametrize(("multiple", "longest"), [(1, 100), (8, 104)])
def test_the_grid_ends_where_padding_ends(multiple: int, longest: int) -> None:
    config = load_config(None, ["workload.max_length=100", f"workload.pad_to_multiple_of={multiple}"])
    assert _length_grid(config)[-1] == longest
    beyond = config.model_copy(update={"probe": config.probe.model_copy(update={"lengths": (longest + 1,)})})
    with pytest.raises(UsageError, match=r"above workload\.max_length"):
        _length_grid(beyond)


@pytest.mark.parametrize(("limit_mb", "fits"), [(150.0, True), (99.0, False), (None, True)])
def test_a_trial_fits_when_what_training_reports_is_within_the_limit(
    monkeypatch: pytest.MonkeyPatch, limit_mb: float | None, fits: bool
) -> None:
    limited = []
    monkeypatch.setattr(trial, "limit_process", limited.append)
    step = TrialStep.__new__(TrialStep)
    step.limit_bytes = None if limit_mb is None else int(limit_mb * 1e6)
    step.memory = SimpleNamespace(reset=lambda: None, now=lambda: MemoryNow(100.0, None))  # type: ignore[assignment]
    monkeypatch.setattr(step, "step", lambda n, length, most: None, raising=False)
    assert step.fits(4, 32) == (fits, 100.0)
    assert limited == ([] if limit_mb is None else [step.limit_bytes])


@pytest.mark.slow
def test_the_limit_is_of_resident_memory_libraries_included() -> None:
    """A process of its own: what is refused there is told by its peak."""
    code = (
        "import numpy as np; from pathlib import Path;"
        "from dynbench.engine.rank.memory_limit import limit_process, resident_bytes;"
        "limit = resident_bytes() + 80_000_000; limit_process(limit); kept = []\n"
        "try:\n  while True: kept.append(np.ones(500_000))\n"
        "except MemoryError: pass\n"
        "peak = next(line for line in Path('/proc/self/status').read_text().splitlines() if line.startswith('VmHWM'))\n"
        "print(limit, int(peak.split()[1]) * 1024, len(kept) * 4_000_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    limit, peak, kept = map(int, done.stdout.split())
    assert 0.9 * limit < peak <= 1.02 * limit
    assert kept > 60_000_000


def test_a_server_without_room_for_what_it_holds_ends_the_probe() -> None:
    config = load_config(None, ["sync.name=ps"])
    assert served_mb(config, 100.0, 500.0) == 500.0
    assert served_mb(config, 100.0, None) == 500.0
    assert served_mb(load_config(None, []), 100.0, 1.0) is None
    with pytest.raises(NothingFits, match=r"a server of sync.name 'ps' holds 500 MB .* more than the 499 MB"):
        served_mb(config, 100.0, 499.0)
