"""The compressors by name; adding one is one file and one line here."""

from __future__ import annotations

from dynbench.compress.base import Compressor
from dynbench.config.schema import Compress

REGISTRY: dict[str, type[Compressor] | None] = {
    "none": None,
}
"""None sends gradients as they are, without a queue."""


def build_compressor(settings: Compress) -> Compressor | None:
    """The compressor `compress.name`; None where nothing is compressed."""
    found = REGISTRY[settings.name]
    return None if found is None else found(settings)
