"""Tokenised samples in one flat array, in memory or on disk, so that lengths are known without touching any token.

And the rules by which some of them are held out for evaluation, or drawn as a subset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

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


IntArray = NDArray[np.int64]
Weights = NDArray[np.float64]

MOST_IN_MEMORY = 2**22
"""Tokens on disk beyond which samples stay there, and only those of a batch are read."""


@dataclass(frozen=True)
class TokenisedData:
    """Samples after truncation, before padding.

    Args:
        tokens: token ids of all samples, one after another, int32 [total tokens]; or, with `starts`, an array on disk
            that they are parts of.
        offsets: sample i is `tokens[offsets[i]:offsets[i + 1]]`, int64 [N + 1]; with `starts`, only as long as that.
        labels: class of each sample, counted from 0, int64 [N].
        fingerprint: digest of these arrays, the weights and the second numbers; equal data have equal fingerprints.
        removed: tokens that truncation took from each sample, int64 [N]; None where it took none.
        weights: what each sample counts in the loss, float64 [N]; None where each counts 1.
        starts: where each sample begins in `tokens` on disk, int64 [N]; None where `offsets` say it.
        second: a second number of each sample besides its tokens, int64 [N]; None where there is none.
    """

    tokens: NDArray[np.int32] | StoredTokens
    offsets: IntArray
    labels: IntArray
    fingerprint: str
    removed: IntArray | None = None
    weights: Weights | None = None
    starts: IntArray | None = None
    second: IntArray | None = None

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
        fingerprint = digest_of(tokens, offsets, labels, *(() if checked is None else (checked,)))
        return cls(tokens, offsets, labels, fingerprint, _some(removed), checked)

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
        offsets = offsets_of(lengths)
        flat = (token for sample in samples for token in sample)
        tokens = np.fromiter(flat, dtype=np.int32, count=int(offsets[-1]))
        return cls.from_arrays(tokens, offsets, labels, removed, weights)

    @classmethod
    def from_stored(
        cls, tokens: StoredTokens, starts: IntArray, lengths: IntArray, digest: str, removed: IntArray | None = None
    ) -> TokenisedData:
        """Samples that are parts of an array on disk, all of class 0; few are read at once, many stay there.

        Args:
            tokens: the array.
            starts: where each sample begins, shape [N].
            lengths: tokens of each sample, at least 1, shape [N].
            digest: of the array.
            removed: tokens that truncation took from each sample, shape [N].
        """
        offsets = offsets_of(lengths)
        labels = np.zeros(len(lengths), dtype=np.int64)
        if offsets[-1] <= MOST_IN_MEMORY:
            return cls.from_arrays(tokens[_positions(starts, offsets)], offsets, labels, removed)
        fingerprint = digest_of(digest.encode(), starts.astype(np.int64), lengths.astype(np.int64))
        return cls(tokens, offsets, labels, fingerprint, _some(removed), starts=starts)

    def weighed(self, weights: ArrayLike) -> TokenisedData:
        """The samples with what each counts in the loss, shape [N].

        Raises:
            ValueError: the weights do not weigh them.
        """
        if self.second is not None:
            return replace(self, second=None).weighed(weights).with_second(self.second)
        checked = _checked(weights, len(self))
        if not isinstance(self.tokens, StoredTokens):
            return TokenisedData.from_arrays(self.tokens, self.offsets, self.labels, self.removed, checked)
        fingerprint = digest_of(self.fingerprint.encode(), *(() if checked is None else (checked,)))
        return replace(self, fingerprint=fingerprint, weights=checked)

    def with_second(self, second: IntArray) -> TokenisedData:
        """The samples with a second number each, shape [N]."""
        return replace(self, fingerprint=digest_of(self.fingerprint.encode(), second), second=second)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def lengths(self) -> IntArray:
        """Length of each sample in tokens, shape [N]."""
        return np.diff(self.offsets)

    def weight(self, ids: IntArray) -> float:
        """What the samples `ids`, shape [n], count in the loss jointly; n where each counts 1."""
        return float(len(ids) if self.weights is None else self.weights[ids].sum())

    @cached_property
    def begins(self) -> IntArray:
        """Where each sample begins in `tokens`, shape [N]."""
        return self.offsets[:-1] if self.starts is None else self.starts

    def take(self, ids: IntArray) -> TokenisedData:
        """The samples `ids`, shape [n], renumbered from 0 in that order."""
        if self.second is not None:
            return replace(self, second=None).take(ids).with_second(self.second[ids])
        lengths, begins = self.lengths[ids], self.begins[ids]
        removed = None if self.removed is None else self.removed[ids]
        weights = None if self.weights is None else self.weights[ids]
        if isinstance(self.tokens, StoredTokens):
            found = self.from_stored(self.tokens, begins, lengths, self.fingerprint, removed)
            return found if weights is None else found.weighed(weights)
        offsets = offsets_of(lengths)
        tokens = self.tokens[_positions(begins, offsets)]
        return TokenisedData.from_arrays(tokens, offsets, self.labels[ids], removed, weights)

    def truncate(self, max_length: int) -> TokenisedData:
        """Samples of at most `max_length` tokens (2 or more); the last token, which ends a text, stays the last.

        Raises:
            ValueError: there is something to cut, and the samples are weighed: what the rest weighs is not known here.
        """
        if not len(self) or int(self.lengths.max()) <= max_length:
            return self
        if self.second is not None:
            return replace(self, second=None).truncate(max_length).with_second(self.second)
        if self.weights is not None:
            raise ValueError(f"samples longer than {max_length} tokens have weights already: cut first, then weigh")
        if isinstance(self.tokens, StoredTokens):
            raise ValueError(f"samples longer than {max_length} tokens are on disk already: tokenise them shorter")
        lengths = np.minimum(self.lengths, max_length)
        offsets = offsets_of(lengths)
        tokens = self.tokens[_positions(self.begins, offsets)]
        tokens[offsets[1:] - 1] = self.tokens[self.offsets[1:] - 1]
        removed = self.lengths - lengths + (0 if self.removed is None else self.removed)
        return TokenisedData.from_arrays(tokens, offsets, self.labels, removed)

    def describe(self) -> dict[str, object]:
        """Fingerprint, size, lengths (tokens), classes and what was cut, ready for JSON; of at least one sample."""
        return {
            "fingerprint": self.fingerprint,
            "samples": len(self),
            "tokens": int(self.offsets[-1]),
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
        positions = self.begins[ids][:, None] + columns
        rows[valid] = self.tokens[positions[valid]]
        return rows, valid

    def joined(self, ids: IntArray) -> IntArray:
        """Token ids of the samples `ids`, shape [n], one after another, shape [total tokens]."""
        return self.tokens[_positions(self.begins[ids], offsets_of(self.lengths[ids]))].astype(np.int64)


def offsets_of(lengths: IntArray) -> IntArray:
    """Where each of some samples laid one after another begins, and the last one ends, shape [N + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def digest_of(*parts: bytes | NDArray[np.generic]) -> str:
    """Digest of bytes and of the contents of arrays, one after another."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
    return digest.hexdigest()


def _some(removed: IntArray | None) -> IntArray | None:
    return removed if removed is not None and removed.any() else None


def _positions(begins: IntArray, offsets: IntArray) -> IntArray:
    """Where the tokens of samples are that begin at `begins`, shape [n], and have the lengths that `offsets` say."""
    positions: IntArray = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], np.diff(offsets))
    return positions


def _checked(weights: ArrayLike, n: int) -> Weights | None:
    """Weights of `n` samples; None where all are 1."""
    given = np.array(weights, dtype=np.float64)
    if given.shape != (n,) or not np.isfinite(given).all() or given.min(initial=0) < 0:
        raise ValueError(f"weights are one finite number from 0 on for each of the {n} samples")
    return None if (given == 1).all() else given


HELD_OUT_SHARE = 0.1
HELD_OUT_MOST = 1024
HELD_OUT_SEED = 0
"""Not `train.seed`: runs of different seeds are evaluated on the same samples."""

EVAL_SEED = 0
"""Not `train.seed` either."""

SUBSET_STREAM = 1
"""Keeps the subset's random numbers apart from those of the data order, which is seeded with `train.seed` too."""


def held_out_of(n_samples: int) -> int:
    """A tenth of the training samples, at most `HELD_OUT_MOST`; none of a few."""
    return min(HELD_OUT_MOST, int(n_samples * HELD_OUT_SHARE))


def held_out_ids(n_samples: int) -> tuple[IntArray, IntArray]:
    """The samples to evaluate on, and those that are left to train on, both ascending."""
    order = np.random.default_rng(HELD_OUT_SEED).permutation(n_samples)
    held_out = held_out_of(n_samples)
    return np.sort(order[:held_out]), np.sort(order[held_out:])


def subset_ids(n_samples: int, wanted: int, seed: int) -> IntArray:
    """Random `wanted` of the samples, ascending."""
    order = np.random.default_rng([seed, SUBSET_STREAM]).permutation(n_samples)
    return np.sort(order[:wanted])


def evaluated_ids(n_samples: int, wanted: int) -> IntArray:
    """Random `wanted` of the samples to evaluate on, or all, in a random order."""
    return np.random.default_rng(EVAL_SEED).permutation(n_samples)[:wanted].astype(np.int64)
