"""The compressors: what travels in place of a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dynbench.plugins.registry import Entry, Registry
from dynbench.plugins.section import Section


@dataclass(frozen=True)
class CompressorEntry(Entry):
    """A subclass of `dynbench.compress.base.Compressor`, called with the `compress` section.

    Args:
        compresses: False where gradients are sent as they are, without a queue.
    """

    base: ClassVar[str] = "dynbench.compress.base:Compressor"
    compresses: bool = True


class FeedbackOptions(Section):
    """Of compressors that leave something out."""

    error_feedback: bool = True
    """Keep what compression left out and add it to the next gradient."""


COMPRESSORS: Registry[CompressorEntry] = Registry(
    "compressor",
    "compress.name",
    (CompressorEntry("none", "gradients travel as they are", "dynbench.compress.base:uncompressed", compresses=False),),
    shared=FeedbackOptions,
)
