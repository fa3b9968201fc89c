"""How the ranks' gradients are synchronised: one strategy a file, named in `dynbench/plugins/strategies.py`.

The classes exported here are for any training loop on plain torch, over its default process group:

    from dynbench.sync import BucketedDDP

    model = BucketedDDP(model, bucket_size_mb=25)
    for batch in batches:
        loss(model(batch)).backward()
        model.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()

They are imported when they are first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynbench.sync.fully_sharded import FullyShardedDDP as FullyShardedDDP
    from dynbench.sync.in_order import BucketedDDP as BucketedDDP
    from dynbench.sync.in_order import OverlapDDP as OverlapDDP
    from dynbench.sync.sharded_optimizer import ShardedOptimizer as ShardedOptimizer
    from dynbench.sync.synchronised import FlatDDP as FlatDDP
    from dynbench.sync.synchronised import NaiveDDP as NaiveDDP

_MODULES = {
    "BucketedDDP": "in_order",
    "FlatDDP": "synchronised",
    "FullyShardedDDP": "fully_sharded",
    "NaiveDDP": "synchronised",
    "OverlapDDP": "in_order",
    "ShardedOptimizer": "sharded_optimizer",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
