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
from dynbench.sync.synchronised import fillable
from dynbench.workloads.causal_lm import language_model
from dynbench.workloads.image_classification import image_model
from dynbench.workloads.models import LANGUAGE_MODEL, ModelSource, make_model
from dynbench.workloads.text_classification import model_source

VOCABULARY = 512


def source(*settings: str) -> ModelSource:
    workload = load_config(None, [f"workload.{each}" for each in settings]).workload
    if workload.name == "image_classification":
        return image_model(workload, 4, 32)
    if workload.name == "causal_lm":
        return language_model(workload).source(VOCABULARY)
    return model_source(workload, 10, 0, 2)


def judge(source: ModelSource, stored: Path | None = None) -> None:
    """Names, shapes, layouts, types, dropout and mode are equal; stored weights may be gone by then."""
    full = source.build(0)
    if stored is not None:
        (stored / "model.safetensors").unlink()
    before = torch.random.get_rng_state()
    empty = source.build_empty()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(tensor.is_meta for tensor in (*empty.parameters(), *empty.buffers())) and fillable(empty)
    assert described(empty) == described(full)


def described(model: nn.Module) -> list[object]:
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
    rates = [(name, each.p) for name, each in model.named_modules() if isinstance(each, nn.Dropout)]
    return [model.training, *((name, each.shape, each.stride(), each.dtype) for name, each in tensors), *rates]


@pytest.mark.parametrize("settings", [("size=small", "dropout=0.2"), ("name=causal_lm", "size=tiny", "dropout=0.1")])
def test_of_random_weights(settings):
    judge(source("max_length=16", *settings))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", CONFIGS)
def test_of_any_architecture(architecture, tmp_path):
    folder = write_config(tmp_path / "m", architecture)
    judge(source("max_length=16", f"model={folder}", "size=model", "dropout=0.3"))


@pytest.mark.parametrize("name", ["text_classification", "causal_lm", "image_classification"])
def test_of_stored_weights(name, model_folder, tmp_path):
    folder = tmp_path / "copy"
    if name == "text_classification":
        shutil.copytree(model_folder, folder)
    elif name == "causal_lm":
        made = source("name=causal_lm", "size=tiny", "dropout=0.1")
        make_model(made.config, "saved", "", LANGUAGE_MODEL).save_pretrained(folder)
    else:
        shape = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
        ResNetForImageClassification(ResNetConfig(**shape, num_labels=4)).save_pretrained(folder)
        judge(source(f"name={name}", "weights=random", f"model={folder}"))
    judge(source(f"name={name}", "max_length=16", "weights=pretrained", f"model={folder}"), folder)


def test_a_tensor_that_is_neither_parameter_nor_buffer_cannot_be_filled():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2))
        assert fillable(model)
        model[0].same = model[0].weight.data
        assert not fillable(model)
