"""Every strategy in which all ranks train runs on one rank, and is the training of one process there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from dynbench.engine.rank.toy_check import Case, check_strategy, config_of
from dynbench.plugins import STRATEGIES


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", [name for name, entry in STRATEGIES.items() if not entry.servers])
def test_one_rank_trains_what_one_process_trains(name: str) -> None:
    config = config_of(name)
    if name == "diloco":  # whose outer step is another optimizer also on one rank
        config = config.model_copy(
            update={"sync": config.sync.model_copy(update={"outer_rate": 1.0, "outer_momentum": 0.0})}
        )
    found = check_strategy(config, Case("adamw", steps=4))
    assert found is not None
    assert found.of_rounding <= 1, found
