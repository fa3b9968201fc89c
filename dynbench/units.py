"""Formatting and conversion of bytes, times and counts; the only place that knows 2**20.

Memory is in MB (1e6 bytes) in every record. MiB (2**20 bytes) appears only where torch's own option is in MiB
(bucket sizes) and in sizes typed by a user.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BYTES_PER_MB = 1_000_000

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*$", re.IGNORECASE)
_TIME = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*$", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_STEPS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of a record's field whose name does not end in it, as in `Annotated[int, Unit("ranks")]`."""

    name: str


def parse_bytes(text: str) -> int:
    """Bytes of a size as people type it: `2GiB`, `512MB`, `1.5g` (a single letter counts as decimal).

    Raises:
        ValueError: when the text is not a size.
    """
    match = _SIZE.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write it like 512MB or 2GiB")
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    return round(float(number) * float(base) ** _STEPS[prefix.lower()])


def parse_duration_s(text: str) -> float:
    """Seconds of a time as people type it: `90s`, `20m`, `1.5h`, `2d`, `1w`.

    Raises:
        ValueError: when the text is no time.
    """
    match = _TIME.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time; write it like 90s, 20m or 1.5h")
    number, unit = match.groups()
    return float(number) * _SECONDS[unit.lower()]


def mib(size: float) -> float:
    """Bytes as MiB."""
    return size / 2**20


def bytes_of_mib(mib: float) -> int:
    """Whole bytes of a size in MiB, rounded down."""
    return int(mib * 2**20)


def mb(n_bytes: float) -> float:
    """Bytes to MB."""
    return n_bytes / BYTES_PER_MB


def format_bytes(n_bytes: float) -> str:
    """Bytes for reading, decimal: `1.25 GB`."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def format_ms(ms: float) -> str:
    """Milliseconds for reading: `0.032 ms`, `12.3 ms`, `1.25 s`, `3 min 20 s`."""
    if abs(ms) < 1000:
        return f"{ms:.3g} ms"
    seconds = ms / 1000
    if abs(seconds) < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def format_count(value: float) -> str:
    """Counts with thousands separators: `67,349`; numbers below 100 keep three digits."""
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
