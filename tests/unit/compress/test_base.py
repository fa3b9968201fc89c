"""What a compressor does that keeps nothing."""

from __future__ import annotations

import torch
from toys import Bf16

from dynbench.config.schema import Compress
from dynbench.plugins import COMPRESSORS


def test_nothing_is_compressed_without_a_queue() -> None:
    assert COMPRESSORS["none"].load()(Compress()) is None


def test_the_shard_is_that_of_the_mean() -> None:
    class Channel:
        rank, world_size = 1, 2

    class Doubles(Bf16):
        def mean(self, channel: object, flat: torch.Tensor, segments: object) -> None:
            flat.mul_(2)

    shard = torch.empty(2)
    Doubles(Compress()).mean_shard(Channel(), torch.arange(4.0), (), shard)  # type: ignore[arg-type]
    assert shard.tolist() == [4, 6]
