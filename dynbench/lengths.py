"""Length distributions that ship with dynbench: facts about public corpora, without their text.

Token counts are WordPiece (bert-base-uncased), with the two special tokens, untruncated, over the training split.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """How many samples of a corpus have each length.

    Args:
        shortest: length of the first entry, tokens.
        counts: samples of length `shortest`, `shortest + 1`, …
    """

    shortest: int
    counts: tuple[int, ...]

    def lengths(self) -> NDArray[np.int64]:
        """One entry per sample of the corpus, ascending, tokens."""
        return np.repeat(np.arange(self.shortest, self.shortest + len(self.counts)), self.counts)

    def sample(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """`n` lengths drawn with replacement, tokens."""
        return rng.choice(self.lengths(), size=n)


def _shipped() -> dict[str, LengthHistogram]:
    stored = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {name: LengthHistogram(entry["shortest"], tuple(entry["counts"])) for name, entry in stored.items()}


SHIPPED = _shipped()
SST2 = SHIPPED["sst2"]
"""GLUE SST-2, 67,349 sentences."""
GSM8K = SHIPPED["gsm8k"]
"""GSM8K, 7,473 questions with their answers."""
