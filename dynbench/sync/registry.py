"""The strategies by name; adding one is one file and one line here."""

from __future__ import annotations

from dynbench.sync.base import Strategy
from dynbench.sync.ddp import Ddp

REGISTRY: dict[str, type[Strategy]] = {
    "ddp": Ddp,
}
