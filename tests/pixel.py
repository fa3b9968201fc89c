"""The smallest image, and figures that are no larger."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

UNRENDERED = "import matplotlib.figure, pixel\nmatplotlib.figure.Figure.savefig = pixel.savefig"
"""The same as `unrendered`, for a program that begins with it."""


def png() -> bytes:
    """One grey pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    chunks = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"\0\x80")), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def savefig(figure: object, path: str | Path, **_: object) -> None:
    """In place of matplotlib's."""
    Path(path).write_bytes(png())


def unrendered(patch: pytest.MonkeyPatch) -> None:
    """Figures are drawn from the data as always, and not made into pixels, which takes most of their time."""
    patch.setattr("matplotlib.figure.Figure.savefig", savefig)
