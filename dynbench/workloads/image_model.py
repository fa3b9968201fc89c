"""ResNets: random weights in a known or stored shape, or pretrained ones of transformers or of torchvision."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, ResNetConfig

from dynbench.config.paths import TORCH_WEIGHTS
from dynbench.config.schema import Workload
from dynbench.errors import DataError, UsageError
from dynbench.runs.phrase import Phrase
from dynbench.workloads.first_step import freeze_unused, holds_nothing, trying
from dynbench.workloads.hub import cached_revision, first_line, load_stored, local_folder, quiet_libraries
from dynbench.workloads.model_config import EXPECTED, IMAGE_CLASSIFIER, KEY, make_model, read_config
from dynbench.workloads.pretrained_model import ModelSource, check_weights, facts_of, weights_loader

logger = logging.getLogger(__name__)

WAYS_OUT = "Name a ResNet (--model microsoft/resnet-50, a folder, or resnet50-0676ba61.pth), or use --weights random."
SMALL_SHAPE: dict[str, Any] = {
    "embedding_size": 16,
    "hidden_sizes": [16, 32, 64, 128],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}
HEADS = ("classifier.",)
NAMED = 6
"""Parameters that did not match, of which messages name so many."""
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


def image_model(settings: Workload, num_labels: int, side: int) -> ModelSource:
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
    if settings.weights == "pretrained":
        of_torchvision = settings.model.endswith(TORCH_WEIGHTS)
        return _torchvision(settings, num_labels) if of_torchvision else _stored(settings, num_labels, side)
    if settings.reads_model:
        config, folder = read_config(settings.model, WAYS_OUT), local_folder(KEY, settings.model)
        name = str(folder or settings.model)
        said = Phrase.of("model.configured", architecture=config.model_type, name=name)
    else:
        config, name = ResNetConfig(**(SMALL_SHAPE if settings.shape == "small" else {})), settings.shape
        said = Phrase.of("model.language", architecture=config.model_type, size=settings.shape)
    config.num_labels = num_labels

    def make() -> nn.Module:
        model = make_model(config, name, WAYS_OUT, IMAGE_CLASSIFIER).float()
        return fitted(model, name, side, num_labels) if settings.reads_model else model

    return _source(config, said, make)


def _source(config: PretrainedConfig, said: Phrase, make: Callable[[], nn.Module], **more: object) -> ModelSource:
    return ModelSource(config, ONE_TOKEN, {**facts_of(said, config, **more), "positions": ONE_TOKEN}, make)


def _stored(settings: Workload, num_labels: int, side: int) -> ModelSource:
    config, folder = read_config(settings.model, WAYS_OUT), local_folder(KEY, settings.model)
    name = str(folder or settings.model)
    config.num_labels = num_labels

    def make() -> nn.Module:
        model, report = load_stored(KEY, name, weights_loader(config, IMAGE_CLASSIFIER), EXPECTED, WAYS_OUT)
        if fresh := check_weights(name, report, HEADS):
            logger.info("%s: the head starts from random weights, for %d classes: %s", name, num_labels, _listed(fresh))
        return fitted(model.float(), name, side, num_labels)

    said = Phrase.of("model.pretrained", name=name)
    return _source(config, said, make, revision=cached_revision(name) if folder is None else None)


def _torchvision(settings: Workload, num_labels: int) -> ModelSource:
    path, config = Path(settings.model).expanduser(), ResNetConfig()
    config.num_labels = num_labels

    def make() -> nn.Module:
        model = make_model(config, path.name, WAYS_OUT, IMAGE_CLASSIFIER)
        if not holds_nothing(model):
            load_torchvision(model, read_torchvision(path), path.name)
        return model

    return _source(config, Phrase.of("model.pretrained", name=path.name), make)


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
    if holds_nothing(model):
        return model
    kept = {key: buffer.clone() for key, buffer in model.named_buffers()}
    with trying(f"{name} cannot classify images of {side} by {side} pixels", WAYS_OUT):
        logits = model.train()(pixel_values=torch.randn(TRIED_IMAGES, 3, side, side)).logits
        torch.autograd.backward(F.cross_entropy(logits, torch.zeros(TRIED_IMAGES, dtype=torch.long)))
    if logits.shape != (TRIED_IMAGES, num_labels):
        raise UsageError(f"{KEY}: {name} gives logits of shape {list(logits.shape)} for {num_labels} classes", WAYS_OUT)
    with torch.no_grad():
        for key, buffer in model.named_buffers():
            buffer.copy_(kept[key])
    freeze_unused(model, name)
    return model


def read_torchvision(path: Path) -> dict[str, Tensor]:
    """The parameters that a file of torchvision holds, by its names; no code in it is run.

    Raises:
        DataError: it cannot be read, or holds something else.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, UnpicklingError) as error:
        raise DataError(f"{KEY}: {path}: expected weights of a ResNet-50: {first_line(error)}", WAYS_OUT) from error
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise DataError(f"{KEY}: {path}: expected parameters by name, as torchvision publishes them", WAYS_OUT)
    return dict(found)


def load_torchvision(model: nn.Module, found: Mapping[str, Tensor], name: str) -> list[str]:
    """Put torchvision's weights into a ResNet of transformers; a head of another number of classes stays random.

    Args:
        model: changed in place.
        found: what the file holds.
        name: of the file, for messages.

    Returns:
        What did not match, by its name in the file or, where that lacks it, in the model; told too.

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
    body = [key for key in lacking if not key.startswith(HEADS)]
    if body:
        raise UsageError(
            f"{KEY}: {name} is no ResNet-50 of torchvision: {len(body)} parameters are missing or of another shape, "
            f"{body[0]} first",
            WAYS_OUT,
        )
    model.load_state_dict({**wanted, **fitting})
    unmatched = [theirs for theirs, ours in renamed.items() if ours not in fitting]
    left = unmatched + [key for key in lacking if key not in renamed.values()]
    if left:
        logger.warning(
            "%s: %d parameters did not match and start from random weights: %s", name, len(left), _listed(left)
        )
    return left


def renamed_of(theirs: str) -> str:
    """The name in transformers of a parameter of torchvision's; as it is where there is none."""
    for pattern, ours in _OF_TORCHVISION:
        if match := re.match(pattern, theirs):
            stage, layer, part = (*(int(group) for group in match.groups()), 1, 1, 1)[:3]
            return ours.format(stage - 1, layer, part - 1) + theirs[match.end() :]
    return theirs


def _listed(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
