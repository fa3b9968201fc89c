"""Registers the strategies, as a file of the user's own does."""

from __future__ import annotations

from dynbench.plugins import StrategyEntry, register
from dynbench.plugins.strategies import BucketOptions

for name in ("twin", "other_twin"):
    register(StrategyEntry(name, "ddp by another name", "strategies:Twin", BucketOptions))
for name in ("tenth_more", "other_tenth_more"):
    register(StrategyEntry(name, "ddp with a tenth more to compute", "strategies:TenthMore", BucketOptions))
