"""Models without values are those with values in everything else, and nothing is read, drawn or tried for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from architectures import CONFIGS, write_config
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

from dynbench.config.layers import load_config
from dynbench.sync.shared_model import fillable
from dynbench.workloads.datasets import language
from dynbench.workloads.image_model import image_model
from dynbench.workloads.language_model import language_model
from dynbench.workloads.model_config import LANGUAGE_MODEL, make_model
from dynbench.workloads.pretrained_model import ModelSource, model_source

VOCABULARY = 200


def judge(source: ModelSource, stored: Path | None = None) -> None:
    """Names, shapes, layouts, types, dropout and mode are equal; stored weights may be gone by then."""
    full = source.build(0)
    if stored is not None:
        stored.unlink()
    before = torch.random.get_rng_state()
    empty = source.build_empty()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(tensor.is_meta for tensor in (*empty.parameters(), *empty.buffers())) and fillable(empty)
    assert described(empty) == described(full)


def described(model: nn.Module) -> list[object]:
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
    rates = [(name, each.p) for name, each in model.named_modules() if isinstance(each, nn.Dropout)]
    return [model.training, *((name, each.shape, each.stride(), each.dtype) for name, each in tensors), *rates]


def text_model(*settings: str) -> ModelSource:
    asked = load_config(None, [f"workload.{each}" for each in ("max_length=16", *settings)]).workload
    return model_source(asked, VOCABULARY, 0, 2, None)


def test_of_random_weights() -> None:
    judge(text_model("size=small", "dropout=0.2"))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", CONFIGS)
def test_of_any_architecture(architecture: str, tmp_path: Path) -> None:
    judge(text_model(f"model={write_config(tmp_path / 'm', architecture)}", "size=model", "dropout=0.3"))


def test_of_stored_weights(model_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model_folder, tmp_path / "copy")
    asked = load_config(None, ["workload.weights=pretrained", f"workload.model={folder}", "workload.max_length=16"])
    judge(model_source(asked.workload, 10, 0, 2, None), folder / "model.safetensors")


@pytest.mark.parametrize("stored", [False, True])
def test_of_language_models(stored: bool, tmp_path: Path) -> None:
    settings = ["workload.name=causal_lm", "workload.size=tiny", "workload.max_length=16", "workload.dropout=0.1"]
    source = language_model(load_config(None, settings).workload).source(language.VOCAB_SIZE)
    if not stored:
        judge(source)
        return
    make_model(source.config, "saved", "", LANGUAGE_MODEL).save_pretrained(tmp_path)
    settings = ["workload.name=causal_lm", "workload.weights=pretrained", f"workload.model={tmp_path}"]
    asked = load_config(None, [*settings, "workload.max_length=16"]).workload
    judge(language_model(asked).source(language.VOCAB_SIZE), tmp_path / "model.safetensors")


@pytest.mark.parametrize("weights", ["random", "pretrained"])
def test_of_image_models(weights: str, tmp_path: Path) -> None:
    shape = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    ResNetForImageClassification(ResNetConfig(**shape, num_labels=4)).save_pretrained(tmp_path)
    settings = ["name=image_classification", f"weights={weights}", f"model={tmp_path}"]
    asked = load_config(None, [f"workload.{each}" for each in settings]).workload
    judge(image_model(asked, 4, 32), tmp_path / "model.safetensors" if weights == "pretrained" else None)


def test_a_tensor_that_is_neither_parameter_nor_buffer_cannot_be_filled() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2))
        assert fillable(model)
        model[0].same = model[0].weight.data
        assert not fillable(model)
