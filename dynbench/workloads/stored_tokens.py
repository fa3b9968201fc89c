"""Token ids on disk that read like one array in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray


class StoredTokens:
    """Arrays on disk, one after another as one flat array: what is indexed is read, and nothing else.

    Args:
        parts: token ids, each part one flat array of any integer type, mapped into memory.
    """

    def __init__(self, parts: Sequence[NDArray[np.integer]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, where: slice | ArrayLike) -> NDArray[np.int32]:
        """The ids at some positions from 0 on, in their order, int32."""
        positions = np.arange(*where.indices(len(self))) if isinstance(where, slice) else np.asarray(where)
        found = np.empty(positions.shape, dtype=np.int32)
        part_of = np.searchsorted(self._ends, positions, side="right")
        for part in np.unique(part_of):
            here = part_of == part
            begin = int(self._ends[part]) - len(self._parts[part])
            found[here] = self._parts[part][positions[here] - begin]
        return found

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[np.generic]:
        """All of them, in memory."""
        return self[:].astype(np.int32 if dtype is None else dtype, copy=False)
