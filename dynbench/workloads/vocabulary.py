"""A WordPiece vocabulary: one token per line, its id the line's number from 0."""

from __future__ import annotations

from pathlib import Path

from dynbench.errors import DataError
from dynbench.workloads.datasets.lines import read_lines

KEY = "workload.tokenizer"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def read_vocabulary(path: Path) -> list[str]:
    """The tokens by id.

    Raises:
        DataError: a file that cannot be used, or that lacks one of the special tokens.
    """
    words = read_lines(path, KEY, "expected one WordPiece token per line")
    missing = [token for token in SPECIAL_TOKENS if token not in words]
    if missing:
        raise DataError(f"{KEY}: {path}: no {', '.join(missing)}; expected a WordPiece vocabulary, one token per line")
    return words
