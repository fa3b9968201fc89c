"""Answers of other trainers' packers, and how full multipack's rows are, with the releases that gave them."""

import json
import lzma
from pathlib import Path
from typing import Any

UPSTREAM: dict[str, Any] = json.loads(lzma.decompress(Path(__file__).with_suffix(".json.xz").read_bytes()))
"""`releases`: peer to what was run. `instances`: lengths, ranks, tokens of a row, and by peer the rows of positions.
`multipack`: by trace the fill of its whole steps, of tokens over room."""
