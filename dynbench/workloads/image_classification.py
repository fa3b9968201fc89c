"""Classifying images: one label per image, cross entropy, accuracy; ResNets.

Their weights are random, in a known or stored shape, or pretrained ones of transformers or of torchvision.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import ResNetConfig

from dynbench.config.paths import TORCH_WEIGHTS
from dynbench.config.schema import Config, Workload
from dynbench.errors import DataError, UsageError, first_line
from dynbench.plugins import options_of
from dynbench.plugins.workloads import ImageOptions
from dynbench.runs.phrase import Phrase
from dynbench.workloads import models
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.datasets.images import image_side
from dynbench.workloads.hub import quiet_libraries
from dynbench.workloads.images import RESIZED, Decoder, Pixels, image_samples, square
from dynbench.workloads.samples import decision
from dynbench.workloads.token_loss import grade

logger = logging.getLogger(__name__)

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's pixels between 0 and 1: red, green, blue."""


WAYS_OUT = "Name a ResNet (--model microsoft/resnet-50, a folder, or resnet50-0676ba61.pth), or use --weights random."
SMALL_SHAPE: dict[str, Any] = {
    "embedding_size": 16,
    "hidden_sizes": [16, 32, 64, 128],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}
TRIED_IMAGES = 2
ONE_TOKEN = 1
"""Longest padded sample: an image counts as one token."""

_OF_TORCHVISION = (
    (r"^conv1\.", "resnet.embedder.embedder.convolution."),
    (r"^bn1\.", "resnet.embedder.embedder.normalization."),
    (r"^layer(\d)\.(\d+)\.conv(\d)\.", "resnet.encoder.stages.{0}.layers.{1}.layer.{2}.convolution."),
    (r"^layer(\d)\.(\d+)\.bn(\d)\.", "resnet.encoder.stages.{0}.layers.{1}.layer.{2}.normalization."),
    (r"^layer(\d)\.(\d+)\.downsample\.0\.", "resnet.encoder.stages.{0}.layers.{1}.shortcut.convolution."),
    (r"^layer(\d)\.(\d+)\.downsample\.1\.", "resnet.encoder.stages.{0}.layers.{1}.shortcut.normalization."),
    (r"^fc\.", "classifier.1."),
)
"""Names of torchvision's parameters to those of transformers; stages and convolutions are counted from 1 and from 0."""


class ImageClassification(models.BuildsModel):
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
        found = image_samples(settings, config.train.seed, classes)
        samples, self._image, (self._side, reason) = found.samples, found.image, image_side(settings)
        self._source = image_model(settings, samples.num_labels, self._side)
        if found.classes:
            models.name_classes(self._source.config, found.classes)
        self._decoder = Decoder(self._pixels, options_of(settings, ImageOptions).workers)
        self.positions: int | None = self._source.positions
        self.train: TokenisedData = samples.train
        self.eval: TokenisedData | None = samples.eval
        if reason:
            samples.decisions["workload.image_size"] = decision(self._side, reason)
        self.facts: dict[str, object] = samples.facts(
            self._source.facts,
            num_labels=samples.num_labels,
            unreadable=found.unreadable,
            pixels={"side": self._side, "mean": MEAN, "deviation": DEVIATION},
        )

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
        models.save_model(folder, self._source, models.IMAGE_CLASSIFIER, state, None, images)

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


def image_model(settings: Workload, num_labels: int, side: int) -> models.ModelSource:
    """The model that `workload.weights`, `.model` and `.size` mean, with a head for so many classes.

    Args:
        settings: the configuration's `workload` section.
        num_labels: classes of the data.
        side: pixels of the square that it sees, on which a model of any architecture is tried.

    Raises:
        DataError: a file or folder that holds no such model; of weights, when it is made.
        HubError: a hub name that is neither cached nor reachable.
        UsageError: a model that is no image classifier; of weights, when it is made.
    """
    quiet_libraries()
    file = Path(settings.model).expanduser()
    of_torchvision = settings.weights == "pretrained" and settings.model.endswith(TORCH_WEIGHTS)
    if settings.reads_model and not of_torchvision:
        stored = models.stored_model(settings, models.IMAGE_CLASSIFIER, WAYS_OUT)
        stored.config.num_labels = num_labels
        facts = {**stored.facts(), "positions": ONE_TOKEN}
        return models.ModelSource(
            stored.config, ONE_TOKEN, facts, lambda: fitted(stored.make(), stored.name, side, num_labels)
        )
    config = ResNetConfig(**(SMALL_SHAPE if settings.shape == "small" and not of_torchvision else {}))
    config.num_labels = num_labels
    phrase = Phrase.of("model.language", architecture=config.model_type, size=settings.shape)
    if of_torchvision:
        phrase = Phrase.of("model.pretrained", name=file.name)

    def make() -> nn.Module:
        model = models.make_model(
            config, file.name if of_torchvision else settings.shape, WAYS_OUT, models.IMAGE_CLASSIFIER
        )
        if of_torchvision and not next(model.parameters()).is_meta:
            load_torchvision(model, read_torchvision(file), file.name)
        return model

    return models.ModelSource(config, ONE_TOKEN, {**models.facts_of(phrase, config), "positions": ONE_TOKEN}, make)


def fitted(model: nn.Module, name: str, side: int, num_labels: int) -> nn.Module:
    """The model, once it has classified images of this size; what gets no gradient is frozen.

    Args:
        model: on the CPU, changed in place.
        name: for messages.
        side: pixels.
        num_labels: classes.

    Raises:
        UsageError: it does not classify them.
    """
    before = {key: buffer.clone() for key, buffer in model.named_buffers()}

    def loss() -> Tensor:
        logits = model.train()(pixel_values=torch.randn(TRIED_IMAGES, 3, side, side)).logits
        if logits.shape != (TRIED_IMAGES, num_labels):
            shape = f"{list(logits.shape)} for {num_labels} classes"
            raise UsageError(f"{models.KEY}: {name} gives logits of shape {shape}", WAYS_OUT)
        return F.cross_entropy(logits, torch.zeros(TRIED_IMAGES, dtype=torch.long))

    models.fit_for_training(model, name, loss, f"classify images of {side} by {side} pixels", WAYS_OUT)
    with torch.no_grad():
        for key, buffer in model.named_buffers():
            buffer.copy_(before[key])
    return model


def read_torchvision(path: Path) -> dict[str, Tensor]:
    """The parameters that a file of torchvision holds, by its names; no code in it is run.

    Raises:
        DataError: it cannot be read, or holds something else.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, UnpicklingError) as error:
        raise DataError(
            f"{models.KEY}: {path}: expected weights of a ResNet-50: {first_line(error)}", WAYS_OUT
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise DataError(f"{models.KEY}: {path}: expected parameters by name, as torchvision publishes them", WAYS_OUT)
    return dict(found)


def load_torchvision(model: nn.Module, found: Mapping[str, Tensor], name: str) -> list[str]:
    """Put torchvision's weights into a ResNet of transformers; a head of another number of classes stays random.

    Args:
        model: changed in place.
        found: what the file holds.
        name: of the file, for messages.

    Returns:
        What did not match, by its name in the file or, where that lacks it, in the model; logged too.

    Raises:
        UsageError: a parameter of the body is missing or of another shape.
    """
    wanted, renamed = model.state_dict(), {theirs: renamed_of(theirs) for theirs in found}
    fitting = {
        ours: found[theirs]
        for theirs, ours in renamed.items()
        if ours in wanted and wanted[ours].shape == found[theirs].shape
    }
    lacking = [key for key in wanted if key not in fitting and not key.endswith("num_batches_tracked")]
    body = [key for key in lacking if not key.startswith(models.IMAGE_CLASSIFIER.heads)]
    if body:
        raise UsageError(
            f"{models.KEY}: {name} is no ResNet-50 of torchvision: {len(body)} parameters are missing or of another "
            f"shape, {body[0]} first",
            WAYS_OUT,
        )
    model.load_state_dict({**wanted, **fitting})
    unmatched = [theirs for theirs, ours in renamed.items() if ours not in fitting]
    left = unmatched + [key for key in lacking if key not in renamed.values()]
    if left:
        logger.warning(
            "%s: %d parameters did not match and start from random weights: %s", name, len(left), models.shortened(left)
        )
    return left


def renamed_of(theirs: str) -> str:
    """The name in transformers of a parameter of torchvision's; as it is where there is none."""
    for pattern, ours in _OF_TORCHVISION:
        if match := re.match(pattern, theirs):
            stage, layer, part = (*(int(group) for group in match.groups()), 1, 1, 1)[:3]
            return ours.format(stage - 1, layer, part - 1) + theirs[match.end() :]
    return theirs
