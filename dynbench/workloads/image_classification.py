"""Classifying images: one label per image, cross entropy, accuracy; ResNets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from dynbench.config.schema import Config
from dynbench.plugins import options_of
from dynbench.plugins.workloads import ImageOptions
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.decoding import RESIZED, Decoder, Pixels, square
from dynbench.workloads.image_model import image_model
from dynbench.workloads.image_samples import image_samples
from dynbench.workloads.image_side import image_side
from dynbench.workloads.model_config import IMAGE_CLASSIFIER
from dynbench.workloads.readable import without_unreadable
from dynbench.workloads.saved_model import save_model
from dynbench.workloads.token_loss import grade

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's pixels between 0 and 1: red, green, blue."""


class ImageClassification:
    """The images of `workload.dataset` and the ResNet of `workload.model` or `.size`.

    An image counts as one token: all cost the same. Batch normalisation sees the samples that a rank runs together,
    so that losses depend on who runs what.

    Args:
        config: resolved configuration.
        classes: those of a trained model in order, see `load_dataset`.

    Raises:
        DataError: files or a model that cannot be used.
        HubError: a hub name that is neither cached nor reachable.
        UsageError: a model that is no image classifier.
    """

    def __init__(self, config: Config, classes: Sequence[str] = ()) -> None:
        settings = config.workload
        found = image_samples(settings, config.train.seed, lambda split: without_unreadable(split, settings), classes)
        self._image, (self._side, reason) = found.image, image_side(settings)
        self._source = image_model(settings, found.num_labels, self._side)
        if found.classes:
            self._source.config.id2label = dict(enumerate(found.classes))
            self._source.config.label2id = {name: number for number, name in enumerate(found.classes)}
        self._decoder = Decoder(self._pixels, options_of(settings, ImageOptions).workers)
        self.positions: int | None = self._source.positions
        self.train: TokenisedData = found.train
        self.eval: TokenisedData | None = found.eval
        sized = {"workload.image_size": {"value": self._side, "reason": reason}} if reason else {}
        self.facts: dict[str, object] = {
            **found.facts,
            "pixels": {"side": self._side, "mean": MEAN, "deviation": DEVIATION},
            "model": self._source.facts,
            "decisions": {**found.decisions, **sized},
        }

    def expect(self, share: Sequence[IntArray]) -> None:
        """Begin to decode the images of a rank's next step, where `workload.workers` do so."""
        self._decoder.expect([number for ids in share for number in self._numbers(self.train, ids)])

    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write the model of a state as transformers saves it."""
        images = {
            "image_processor_type": "ConvNextImageProcessor",
            "size": {"shortest_edge": self._side},
            "crop_pct": 1 / RESIZED,
            "resample": int(Image.Resampling.BILINEAR),
            "image_mean": MEAN,
            "image_std": DEVIATION,
        }
        save_model(folder, self._source, IMAGE_CLASSIFIER, state, None, images)

    def build_model(self, seed: int) -> nn.Module:
        """The model on the CPU in fp32, in training mode; equal seeds give equal weights on every rank."""
        return self._source.build(seed)

    def build_empty_model(self) -> nn.Module:
        """As `build_model`, without values, on the meta device."""
        return self._source.build_empty()

    def collate(self, data: TokenisedData, ids: IntArray, width: int) -> dict[str, Tensor]:
        """`pixels` of the samples `ids`, between 0 and 255, uint8 [n, 3, side, side], and `labels`, int64 [n]."""
        pixels = torch.from_numpy(np.stack(self._decoder(self._numbers(data, ids))))
        return {"pixels": pixels.permute(0, 3, 1, 2), "labels": torch.from_numpy(data.labels[ids])}

    def graded_loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Cross entropy summed over the batch's samples, and how many of them were right."""
        kind, labels = next(model.parameters()).dtype, batch["labels"]
        pixels = batch["pixels"].to(kind).contiguous() / 255
        mean, deviation = (pixels.new_tensor(values).view(3, 1, 1) for values in (MEAN, DEVIATION))
        seen = (pixels - mean) / deviation
        if model.training and len(labels) == 1:
            # Twice over, an image has the statistics of itself, also where the last maps are one pixel large and torch
            # finds nothing to normalise over.
            seen = torch.cat((seen, seen))
        return grade(model(pixel_values=seen).logits[: len(labels)], labels)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Cross entropy summed over the batch's samples."""
        return self.graded_loss(model, batch)[0]

    def eval_sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        """Summed cross entropy and number of right answers."""
        loss, right = self.graded_loss(model, batch)
        return {"loss_sum": loss.item(), "correct": float(right.item())}

    def _pixels(self, number: int) -> Pixels:
        return square(self._image(number), self._side)

    def _numbers(self, data: TokenisedData, ids: IntArray) -> list[int]:
        numbers: list[int] = data.tokens[data.begins[ids]].tolist()
        return numbers
