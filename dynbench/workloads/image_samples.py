"""From the images of a data set to the samples of a run: unreadable ones left out, held out, subset drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from PIL import Image

from dynbench.config.schema import Workload
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.datasets.base import ImageSplit, Splits
from dynbench.workloads.datasets.registry import load_dataset
from dynbench.workloads.samples import Samples, prepare_samples


@dataclass(frozen=True)
class ImageSamples:
    """The samples of a run, each one token long: the number of its image.

    Args:
        train: training samples.
        eval: evaluation samples, where there are any.
        image: an image by its number.
        num_labels: classes.
        classes: what the source calls them; empty where it counts them from 0.
        facts: what records say of all this but `decisions`.
        decisions: what was decided from the data, as `{key: {"value", "reason"}}`.
    """

    train: TokenisedData
    eval: TokenisedData | None
    image: Callable[[int], Image.Image]
    num_labels: int
    classes: tuple[str, ...]
    facts: dict[str, object]
    decisions: dict[str, object]


def image_samples(
    settings: Workload,
    seed: int,
    checked: Callable[[ImageSplit], tuple[ImageSplit, tuple[str, ...]]] = lambda split: (split, ()),
    classes: Sequence[str] = (),
) -> ImageSamples:
    """The images of `workload.dataset`.

    Args:
        settings: the configuration's `workload` section.
        seed: `train.seed`, for the subset.
        checked: a split without what is unreadable in it, and the paths of that.
        classes: those of a trained model in order, see `load_dataset`.

    Raises:
        DataError: files that cannot be used.
    """
    splits = load_dataset(settings, classes)
    assert isinstance(splits.train, ImageSplit), "rules ask for images"
    assert splits.eval is None or isinstance(splits.eval, ImageSplit)
    train, unreadable = checked(splits.train)
    held, more = (None, ()) if splits.eval is None else checked(splits.eval)
    samples = prepare_samples(Splits(train, held), settings, seed)
    digest = f"{train.digest} {'' if held is None else held.digest}"
    data, evaluation = _of(samples.train, digest), None if samples.eval is None else _of(samples.eval, digest)

    def image(number: int) -> Image.Image:
        if number < len(train):
            return train.images(number)
        assert held is not None
        return held.images(number - len(train))

    facts = _facts(samples, data, evaluation) | {"unreadable": [*unreadable, *more]}
    return ImageSamples(data, evaluation, image, samples.num_labels, train.classes, facts, samples.decisions)


def _of(data: TokenisedData, digest: str) -> TokenisedData:
    """The samples with a fingerprint that tells other images with the same numbers apart."""
    return replace(
        data, fingerprint=hashlib.blake2b(f"{data.fingerprint} {digest}".encode(), digest_size=16).hexdigest()
    )


def _facts(samples: Samples, train: TokenisedData, evaluation: TokenisedData | None) -> dict[str, object]:
    return {
        **samples.facts,
        "fingerprint": train.fingerprint,
        "train": train.describe(),
        "eval": None if evaluation is None else evaluation.describe(),
        "num_labels": samples.num_labels,
    }
