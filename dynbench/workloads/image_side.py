"""The square that an image model sees."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from dynbench.config.schema import Workload
from dynbench.errors import DataError
from dynbench.plugins import DATASETS, options_of
from dynbench.plugins.workloads import ImageOptions

PHOTOGRAPHS, GENERATED = 224, 32
PREPROCESSOR = "preprocessor_config.json"
"""Within a model's folder: what transformers makes of images before the model sees them."""


def image_side(settings: Workload) -> tuple[int, str]:
    """Its side in pixels, and why where `workload.image_size` leaves that open; else no reason.

    Raises:
        DataError: a pretrained model says something else than a size.
    """
    asked = options_of(settings, ImageOptions).image_size
    if asked != "auto":
        return asked, ""
    file = _said_by_the_model(settings)
    if file is not None:
        return _stored(file), f"what {file} says"
    if DATASETS[settings.dataset].generated:
        return GENERATED, "generated images"
    reason = "what ResNets are trained with on photographs"
    if settings.weights == "pretrained":
        reason += f"; {settings.model} has no {PREPROCESSOR} here that says more"
    return PHOTOGRAPHS, reason


def _said_by_the_model(settings: Workload) -> Path | None:
    """Where a pretrained model says it: in its folder, or in the hub's cache; None where it does not."""
    if settings.weights != "pretrained":
        return None
    folder = Path(settings.model).expanduser()
    if folder.exists():
        return folder / PREPROCESSOR if (folder / PREPROCESSOR).is_file() else None
    from huggingface_hub import try_to_load_from_cache  # takes a third of a second, and few runs ask
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):  # which whoever loads the model tells of
        found = try_to_load_from_cache(settings.model, PREPROCESSOR)
        return Path(found) if isinstance(found, str) else None
    return None


def _stored(file: Path) -> int:
    """What is cut out in the end, where that is said apart, else the size."""
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        size = said.get("crop_size") or said["size"]
        sides = {int(side) for side in (size.values() if isinstance(size, dict) else [size])}
        (side,) = sides
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file}: the side of a square cannot be read in it: {error}", "Say it: --image-size 224."
        ) from error
    return side
