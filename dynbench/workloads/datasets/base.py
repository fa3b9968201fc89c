"""What a dataset hands over: texts still to be tokenised, token ids, lengths to generate token ids for, or images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dynbench.workloads.data import IntArray, TokenisedData

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class TextSplit:
    """Labelled texts in the order of their source.

    Args:
        texts: N texts.
        labels: class of each text, counted from 0, int64 [N].
        source: where they come from, for messages and records.
        classes: what the source calls each class; empty where it counts them from 0.
    """

    texts: Sequence[str]
    labels: IntArray
    source: str
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class TokenSplit:
    """Samples that are token ids from the start, in BERT's numbering of the special tokens.

    Args:
        data: the samples, not yet truncated.
        vocab_size: token ids are below it.
        pad_id: token id of the padding.
        source: where they come from, for messages and records.
    """

    data: TokenisedData
    vocab_size: int
    pad_id: int
    source: str

    def __len__(self) -> int:
        return len(self.data)


@dataclass(frozen=True)
class LengthSplit:
    """Samples of which only the lengths are known; tokens are generated once it is known how many are kept.

    Args:
        lengths: tokens of each sample, not yet truncated, int64 [N].
        generate: samples of the lengths given, tokens and labels depending on nothing but each sample's index.
        vocab_size: token ids are below it.
        pad_id: token id of the padding.
        source: where the lengths come from, for messages and records.
        second: a second number of each sample, int64 [N]; None where there is none.
    """

    lengths: IntArray
    generate: Callable[[IntArray], TokenisedData]
    vocab_size: int
    pad_id: int
    source: str
    second: IntArray | None = None

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class CorpusSplit:
    """Texts without labels, as many as a disk holds: they are read anew as often as they are needed.

    Args:
        read: the texts from the first one on, in the order of their source; raises what is wrong with it on the way.
        source: where they come from, for messages and records.
        state: what changes whenever the source does, at hand without reading it; ready for JSON.
        texts: their number, where that is known; else they are read to be counted.
    """

    read: Callable[[], Iterator[str]]
    source: str
    state: Sequence[int | str]
    texts: int | None = None

    @cached_property
    def _counted(self) -> int:
        return sum(1 for _ in self.read())

    def __len__(self) -> int:
        return self._counted if self.texts is None else self.texts


@dataclass(frozen=True)
class ImageSplit:
    """Labelled images in the order of their source.

    Args:
        images: image `i`, for i below N; raises DataError where it cannot be read.
        labels: class of each image, counted from 0, int64 [N].
        source: where they come from, for messages and records.
        digest: of what the images are: of files, of their names and sizes, and of what is in them once they were read.
        classes: what the source calls each class; empty where it counts them from 0.
        files: their paths, where each is a file.
    """

    images: Callable[[int], Image.Image]
    labels: IntArray
    source: str
    digest: str
    classes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


Split = TextSplit | TokenSplit | LengthSplit | CorpusSplit | ImageSplit


@dataclass(frozen=True)
class Splits:
    """Training samples, and evaluation samples where the source has its own."""

    train: Split
    eval: Split | None = None
