"""Length distributions that ship with dynbench: facts about public corpora, without their text.

Token counts are WordPiece (bert-base-uncased), with the two special tokens, untruncated, over the training split.
"""

from __future__ import annotations

from dataclasses import dataclass

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


# fmt: off
SST2 = LengthHistogram(3, (
    1978, 5322, 6065, 5345, 4749, 4155, 3713, 3267, 2947, 2650, 2413, 2138, 1950, 1777, 1661, 1515, 1373, 1285,
    1132, 1106, 1046, 909, 820, 806, 733, 692, 628, 538, 491, 442, 448, 400, 337, 304, 286, 242, 195, 203, 192,
    155, 148, 130, 89, 82, 85, 73, 55, 42, 50, 40, 36, 19, 21, 22, 15, 8, 6, 3, 2, 5, 5, 1, 2, 2,
))
# fmt: on
"""GLUE SST-2, 67,349 sentences."""

# fmt: off
GSM8K = LengthHistogram(55, (
    1, 0, 0, 1, 0, 2, 1, 4, 3, 1, 1, 4, 2, 6, 4, 12, 9, 15, 13, 21, 19, 20, 21, 30, 15, 31, 27, 32, 29, 36, 26,
    21, 43, 36, 36, 51, 40, 38, 38, 39, 41, 57, 51, 49, 44, 63, 64, 57, 52, 44, 55, 55, 59, 66, 63, 52, 57, 67,
    56, 50, 68, 63, 61, 61, 53, 59, 54, 59, 54, 60, 52, 50, 59, 76, 47, 69, 63, 48, 58, 61, 61, 57, 53, 49, 54,
    49, 66, 52, 55, 53, 63, 51, 53, 55, 56, 59, 50, 57, 55, 50, 50, 57, 62, 37, 42, 39, 45, 38, 47, 57, 41, 32,
    40, 33, 45, 37, 44, 39, 41, 38, 48, 49, 42, 40, 50, 45, 48, 40, 30, 34, 33, 30, 44, 38, 37, 27, 40, 40, 35,
    34, 26, 29, 29, 33, 35, 33, 22, 33, 34, 22, 32, 26, 23, 35, 24, 20, 18, 18, 25, 22, 29, 14, 26, 20, 23, 22,
    18, 21, 20, 14, 22, 21, 20, 12, 18, 24, 17, 19, 19, 15, 22, 20, 14, 16, 16, 15, 21, 9, 21, 15, 12, 16, 13,
    10, 12, 10, 17, 6, 10, 14, 12, 9, 14, 7, 12, 9, 12, 7, 10, 4, 11, 9, 13, 10, 9, 10, 5, 8, 11, 11, 6, 8, 11,
    3, 9, 6, 3, 7, 11, 3, 5, 4, 5, 6, 3, 13, 3, 5, 3, 4, 6, 3, 6, 6, 6, 5, 3, 3, 6, 4, 5, 4, 3, 4, 4, 4, 3, 2,
    3, 4, 0, 2, 1, 2, 5, 4, 5, 2, 1, 2, 2, 0, 2, 3, 1, 3, 1, 2, 2, 0, 1, 2, 1, 2, 1, 2, 0, 1, 0, 0, 3, 1, 0, 3,
    0, 0, 2, 1, 0, 2, 0, 4, 3, 0, 0, 2, 0, 1, 1, 0, 1, 2, 0, 2, 0, 0, 2, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0,
    0, 0, 1, 0, 1, 0, 0, 2, 0, 0, 2, 0, 0, 1, 0, 0, 3, 0, 1, 0, 1, 0, 0, 0, 1, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1,
))
# fmt: on
"""GSM8K, 7,473 questions with their answers."""
