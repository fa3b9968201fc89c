"""Registers the strategies, as a file of the user's own does."""

from __future__ import annotations

from dynbench.plugins import StrategyEntry, register
from dynbench.plugins.strategies import BucketOptions

register(StrategyEntry("twin", "ddp by another name", "strategies:Twin", BucketOptions))
register(StrategyEntry("tenth_more", "ddp with a tenth more to compute", "strategies:TenthMore", BucketOptions))
