"""Tokenised samples in one flat array, so that lengths are known without touching any token."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class TokenisedData:
    """Samples after truncation, before padding.

    Args:
        tokens: token ids of all samples, one after another, int32 [total tokens].
        offsets: sample i is `tokens[offsets[i]:offsets[i + 1]]`, int64 [N + 1].
        labels: class of each sample, counted from 0, int64 [N].
        fingerprint: digest of these arrays and the weights; equal data have equal fingerprints.
        removed: tokens that truncation took from each sample, int64 [N]; None where it took none.
        weights: what each sample counts in the loss, float64 [N]; None where each counts 1.
    """

    tokens: NDArray[np.int32]
    offsets: IntArray
    labels: IntArray
    fingerprint: str
    removed: IntArray | None = None
    weights: Weights | None = None

    @classmethod
    def from_arrays(
        cls,
        tokens: NDArray[np.int32],
        offsets: IntArray,
        labels: IntArray,
        removed: IntArray | None = None,
        weights: ArrayLike | None = None,
    ) -> TokenisedData:
        """Data with its fingerprint computed.

        Raises:
            ValueError: the arrays do not describe samples of at least one token each, or the weights do not weigh
                them.
        """
        if offsets.ndim != 1 or len(offsets) != len(labels) + 1 or offsets[0] != 0 or offsets[-1] != len(tokens):
            raise ValueError("offsets do not cover the tokens and labels")
        if len(labels) and np.diff(offsets).min() < 1:
            raise ValueError("a sample has no tokens")
        if removed is not None and (removed.shape != labels.shape or (len(removed) and removed.min() < 0)):
            raise ValueError("not one number of removed tokens per sample")
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        offsets = np.ascontiguousarray(offsets, dtype=np.int64)
        labels = np.ascontiguousarray(labels, dtype=np.int64)
        checked = None if weights is None else _checked(weights, len(labels))
        digest = hashlib.blake2b(digest_size=16)
        for array in (tokens, offsets, labels, *(() if checked is None else (checked,))):
            digest.update(array.tobytes())
        cut = removed if removed is not None and removed.any() else None
        return cls(tokens, offsets, labels, digest.hexdigest(), cut, checked)

    @classmethod
    def from_samples(
        cls,
        samples: Sequence[Sequence[int]],
        labels: IntArray,
        removed: IntArray | None = None,
        weights: ArrayLike | None = None,
    ) -> TokenisedData:
        """Data from one sequence of token ids per sample."""
        lengths = np.fromiter((len(sample) for sample in samples), dtype=np.int64, count=len(samples))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        flat = (token for sample in samples for token in sample)
        tokens = np.fromiter(flat, dtype=np.int32, count=int(offsets[-1]))
        return cls.from_arrays(tokens, offsets, labels, removed, weights)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def lengths(self) -> IntArray:
        """Length of each sample in tokens, shape [N]."""
        return np.diff(self.offsets)

    def weight(self, ids: IntArray) -> float:
        """What the samples `ids`, shape [n], count in the loss together; n where each counts 1."""
        return float(len(ids) if self.weights is None else self.weights[ids].sum())

    def take(self, ids: IntArray) -> TokenisedData:
        """The samples `ids`, shape [n], renumbered from 0 in that order."""
        lengths = self.lengths[ids]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        positions = np.arange(offsets[-1]) + np.repeat(self.offsets[ids] - offsets[:-1], lengths)
        removed = None if self.removed is None else self.removed[ids]
        weights = None if self.weights is None else self.weights[ids]
        return TokenisedData.from_arrays(self.tokens[positions], offsets, self.labels[ids], removed, weights)

    def truncate(self, max_length: int) -> TokenisedData:
        """Samples of at most `max_length` tokens (2 or more); the last token, which ends a text, stays the last.

        Raises:
            ValueError: there is something to cut, and the samples are weighed: what the rest weighs is not known here.
        """
        if not len(self) or int(self.lengths.max()) <= max_length:
            return self
        if self.weights is not None:
            raise ValueError(f"samples longer than {max_length} tokens have weights already: cut first, then weigh")
        lengths = np.minimum(self.lengths, max_length)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        tokens = self.tokens[np.arange(offsets[-1]) + np.repeat(self.offsets[:-1] - offsets[:-1], lengths)]
        tokens[offsets[1:] - 1] = self.tokens[self.offsets[1:] - 1]
        removed = self.lengths - lengths + (0 if self.removed is None else self.removed)
        return TokenisedData.from_arrays(tokens, offsets, self.labels, removed)

    def describe(self) -> dict[str, object]:
        """Fingerprint, size, lengths (tokens), classes and what was cut, ready for JSON; of at least one sample."""
        return {
            "fingerprint": self.fingerprint,
            "samples": len(self),
            "tokens": len(self.tokens),
            "shortest": int(self.lengths.min()),
            "mean_length": round(float(self.lengths.mean()), 3),
            "longest": int(self.lengths.max()),
            "classes": len(np.unique(self.labels)),
            "cut_samples": 0 if self.removed is None else int(np.count_nonzero(self.removed)),
            "cut_tokens": 0 if self.removed is None else int(self.removed.sum()),
        }

    def padded(self, ids: IntArray, width: int, pad_id: int) -> tuple[IntArray, NDArray[np.bool_]]:
        """Token ids and validity of the samples `ids`, both of shape [n, width], padded at the end.

        Args:
            ids: sample ids, shape [n].
            width: padded length in tokens, at least that of the longest sample.
            pad_id: token id of the padding.

        Raises:
            ValueError: a sample is longer.
        """
        lengths = self.lengths[ids]
        if len(ids) and lengths.max() > width:
            raise ValueError(f"a sample of {lengths.max()} tokens cannot be padded to {width}")
        columns = np.arange(width)
        valid = columns < lengths[:, None]
        rows = np.full((len(ids), width), pad_id, dtype=np.int64)
        positions = self.offsets[ids][:, None] + columns
        rows[valid] = self.tokens[positions[valid]]
        return rows, valid


def _checked(weights: ArrayLike, n: int) -> Weights | None:
    """Weights of `n` samples; None where all are 1."""
    given = np.array(weights, dtype=np.float64)
    if given.shape != (n,) or not np.isfinite(given).all() or given.min(initial=0) < 0:
        raise ValueError(f"weights are one finite number from 0 on for each of the {n} samples")
    return None if (given == 1).all() else given
