"""The smallest image, and figures that are no larger."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

UNRENDERED = "import matplotlib.figure, pixel\nmatplotlib.figure.Figure.savefig = pixel.savefig"
"""The same as `unrendered`, for a program that begins with it."""


@cache
def png() -> bytes:
    """One grey pixel."""
    from PIL import Image

    content = BytesIO()
    Image.new("L", (1, 1), 128).save(content, "PNG")
    return content.getvalue()


def savefig(figure: object, path: str | Path, **_: object) -> None:
    """In place of matplotlib's."""
    Path(path).write_bytes(png())


def unrendered(patch: pytest.MonkeyPatch) -> None:
    """Figures are drawn from the data as always, and not made into pixels, which takes most of their time."""
    patch.setattr("matplotlib.figure.Figure.savefig", savefig)
