"""Handwritten digits and a network of two small hidden layers: small enough to look at every weight."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dynbench.config.schema import Config
from dynbench.errors import DataError, UsageError
from dynbench.runs.atomic import replacing_folder
from dynbench.runs.phrase import Phrase
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.datasets.images import CLASSES, SIDE
from dynbench.workloads.images import image_samples
from dynbench.workloads.token_loss import grade

WIDTHS = (SIDE * SIDE, 50, 50, CLASSES)
MEAN, DEVIATION = 0.1307, 0.3081
"""Of MNIST's pixels, between 0 and 1."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"
ARCHITECTURE = "DigitsMlp"
"""As a saved one's configuration has it."""


class DigitClassification:
    """The digits of `workload.dataset`, and a 784-50-50-10 network with ReLU.

    Raises:
        DataError: files that cannot be used.
    """

    def __init__(self, config: Config) -> None:
        found = image_samples(config.workload, config.train.seed)
        self._settings, self._image, samples = config.workload, found.image, found.samples
        self.positions: int | None = 1
        self.train: TokenisedData = samples.train
        self.eval: TokenisedData | None = samples.eval
        phrase = Phrase.of("model.language", architecture="mlp", size=config.workload.shape)
        if config.workload.weights == "pretrained":
            phrase = Phrase.of("model.pretrained", name=config.workload.model)
        model = {"source": phrase, "said": phrase.record(), "architecture": "mlp", "positions": 1, "classes": CLASSES}
        self.facts: dict[str, object] = samples.facts(model, num_labels=samples.num_labels, unreadable=found.unreadable)

    def build_model(self, seed: int) -> nn.Module:
        """The network on the CPU in fp32, in training mode; equal seeds give equal weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers: list[nn.Module] = []
            for inner, outer in pairwise(WIDTHS):
                layers += [nn.Linear(inner, outer), nn.ReLU()]
            model = nn.Sequential(*layers[:-1])
        if self._settings.weights == "pretrained":
            _load(model, Path(self._settings.model).expanduser())
        return model.train()

    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write the weights and what they are of; what was there stays until the new ones are whole."""
        said = json.dumps({"architectures": [ARCHITECTURE], "widths": WIDTHS})
        with replacing_folder(folder) as partial:
            (partial / CONFIG).write_text(said, encoding="utf-8")
            save_file({name: tensor.contiguous() for name, tensor in state.items()}, partial / WEIGHTS)

    def collate(self, data: TokenisedData, ids: IntArray, width: int) -> dict[str, Tensor]:
        """`pixels` of the samples `ids`, between 0 and 255, uint8 [n, 784], and `labels`, int64 [n]."""
        numbers = data.tokens[data.begins[ids]]
        pixels = np.stack([np.asarray(self._image(int(number))) for number in numbers])
        return {"pixels": torch.from_numpy(pixels.reshape(len(ids), -1)), "labels": torch.from_numpy(data.labels[ids])}

    def graded_loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Cross entropy summed over the batch's samples, and how many of them were right."""
        kind = next(model.parameters()).dtype
        inputs = (batch["pixels"].to(kind) / 255 - MEAN) / DEVIATION
        return grade(model(inputs), batch["labels"])

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Cross entropy summed over the batch's samples."""
        return self.graded_loss(model, batch)[0]

    def eval_sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        """Summed cross entropy and number of right answers."""
        loss, right = self.graded_loss(model, batch)
        return {"loss_sum": loss.item(), "correct": float(right.item())}


def _load(model: nn.Module, folder: Path) -> None:
    try:
        state = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"workload.model: {folder}: expected a network that --save-model kept ({CONFIG}, {WEIGHTS}): {error}",
            "Name such a folder (--model FOLDER), or use --weights random.",
        ) from error
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise UsageError(
            f"workload.model: {folder} holds weights of another network than {'-'.join(map(str, WIDTHS))}",
            "Name a folder that --save-model kept of workload mlp, or use --weights random.",
        ) from error
