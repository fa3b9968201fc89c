"""The square that an image model sees."""

from __future__ import annotations

from dynbench.config.schema import Workload
from dynbench.plugins import DATASETS, options_of
from dynbench.plugins.workloads import ImageOptions

PHOTOGRAPHS, GENERATED = 224, 32


def image_side(settings: Workload) -> tuple[int, str]:
    """Its side in pixels, and why where `workload.image_size` leaves that open; else no reason."""
    asked = options_of(settings, ImageOptions).image_size
    if asked != "auto":
        return asked, ""
    if DATASETS[settings.dataset].generated:
        return GENERATED, "generated images"
    return PHOTOGRAPHS, "what ResNets are trained with on photographs"
