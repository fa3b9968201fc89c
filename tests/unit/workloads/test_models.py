"""Models of every workload and of any architecture: seeds, dropout, losses of samples, saved, and without values."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import CONFIGS, write_config
from batches import batch_of
from safetensors.torch import load_file, save_file
from torch import nn

from dynbench.config.layers import load_config
from dynbench.errors import DataError, DynbenchError, UsageError
from dynbench.plugins import WORKLOADS
from dynbench.sync.synchronised import fillable
from dynbench.workloads.base import BuildsEmpty
from dynbench.workloads.registry import build_workload

IMAGES: dict[str, Mapping[str, object]] = {
    "vit": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 8},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
}
OURS = [(name, None) for name in WORKLOADS]
STORED = [
    *(("text_classification", architecture) for architecture in CONFIGS),
    *(("causal_lm", architecture) for architecture in ("gpt2", "llama", "opt", "bloom")),
    *(("image_classification", architecture) for architecture in IMAGES),
]
"""Workloads with architectures of which a folder has the configuration."""
WEIGHTS = "model.safetensors"
REPEATED = "two passes differ"


def built(folder: Path, name: str, architecture: str | None = None, dropout: float = 0.0, *more: str) -> Any:
    """A workload of few small samples."""
    given = [f"name={name}", "subset=64", "max_length=32", "image_size=16", f"dropout={dropout}", *more]
    given += ["dataset=lognormal"] if WORKLOADS[name].drops else []
    if architecture:
        given.append(f"model={write_config(folder / 'configured', architecture, **IMAGES.get(architecture, {}))}")
    elif "weights=pretrained" not in more:
        given.append(f"size={next(iter(WORKLOADS[name].sizes))}")
    return build_workload(load_config(None, [f"workload.{each}" for each in given]))


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether parameters and statistics are equal."""
    state, others = one.state_dict(), other.state_dict()
    return all(torch.equal(state[key], others[key]) for key in state)


def rates(model: nn.Module) -> set[float]:
    return {module.p for module in model.modules() if isinstance(module, nn.Dropout)}


def described(model: nn.Module) -> list[object]:
    """Mode, names, shapes, layouts, types and dropout."""
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
    dropouts = [(name, each.p) for name, each in model.named_modules() if isinstance(each, nn.Dropout)]
    return [model.training, *((name, each.shape, each.stride(), each.dtype) for name, each in tensors), *dropouts]


@pytest.mark.parametrize(("name", "architecture"), [*OURS, *STORED])
def test_equal_seeds_give_equal_weights_and_losses_of_samples_add_up(tmp_path, name, architecture, caplog):
    """Whatever pads them; statistics of a batch are left out."""
    made, state = built(tmp_path, name, architecture), torch.random.get_rng_state()
    model, again, other = map(made.build_model, (3, 3, 4))
    assert same(model, again) and not same(model, other)
    assert torch.equal(state, torch.random.get_rng_state())
    assert model.training and rates(model) <= {0}
    assert set(made.facts["model"].get("dropout", {}).values()) <= {0, None}
    assert REPEATED not in caplog.text and "padding changes" not in caplog.text
    model.double().train(not WORKLOADS[name].batch_norm)
    ends = [int(pick(made.train.lengths)) for pick in (np.argmin, np.argmax)]
    jointly = made.loss(model, batch_of(made, np.array(ends)))
    assert jointly.item() == pytest.approx(sum(made.loss(model, batch_of(made, np.array([i]))).item() for i in ends))
    jointly.backward()
    assert all(part.grad is not None for part in model.parameters() if part.requires_grad)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "architecture"), [*OURS, *STORED])
def test_dropout_goes_by_each_architectures_own_names_and_a_model_without_values_is_as_one_with_them(
    tmp_path, name, architecture, caplog
):
    made = built(tmp_path, name, architecture, 0.3)
    model, batch = made.build_model(0), batch_of(made, np.arange(8))
    if WORKLOADS[name].drops:
        assert {rate for rate in made.facts["model"]["dropout"].values() if rate is not None} == {0.3}
        assert rates(model) <= {0.3} and REPEATED not in caplog.text
        torch.manual_seed(0)
        assert not torch.equal(made.loss(model, batch), made.loss(model, batch))
    assert isinstance(made, BuildsEmpty) == (name != "mlp")
    if isinstance(made, BuildsEmpty):
        judge_empty(made, model)


def judge_empty(made: Any, model: nn.Module) -> None:
    """Nothing is read, drawn or tried for it."""
    before = torch.random.get_rng_state()
    empty = made.build_empty_model()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(tensor.is_meta for tensor in (*empty.parameters(), *empty.buffers())) and fillable(empty)
    assert described(empty) == described(model)


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_saved_is_read_back(tmp_path, name):
    made, folder = built(tmp_path, name, None, 0.1), tmp_path / "models" / "last"
    model = made.build_model(5)
    for _ in range(2):
        made.save(folder, model.state_dict())
    assert [path.name for path in folder.parent.iterdir()] == ["last"]
    stored = built(tmp_path, name, None, 0.1, "weights=pretrained", f"model={folder}")
    again = stored.build_model(9)
    assert same(model, again)
    assert isinstance(stored, BuildsEmpty) == (name != "mlp")
    if isinstance(stored, BuildsEmpty):
        (folder / WEIGHTS).unlink()
        judge_empty(stored, again)


def of_another_shape(file: Path) -> None:
    state = load_file(file)
    largest = max(state, key=lambda name: state[name].numel())
    save_file(state | {largest: torch.zeros(2, 2)}, file)


DAMAGES: dict[str, tuple[Callable[[Path], object], type[DynbenchError]]] = {
    "absent": (Path.unlink, DataError),
    "garbage": (lambda file: file.write_bytes(b"x" * 100), DataError),
    "cut": (lambda file: os.truncate(file, file.stat().st_size // 2), DataError),
    "of another shape": (of_another_shape, UsageError),
}


@pytest.mark.parametrize(
    ("name", "damage"),
    [*product(WORKLOADS, ("absent", "of another shape")), *product(["text_classification"], ("garbage", "cut"))],
)
def test_weights_that_cannot_be_used_are_named(tmp_path, name, damage):
    made, folder, (spoil, error) = built(tmp_path, name), tmp_path / "last", DAMAGES[damage]
    made.save(folder, made.build_model(0).state_dict())
    spoil(folder / WEIGHTS)
    with pytest.raises(error, match=rf"^workload\.model: .*{folder}"):
        built(tmp_path, name, None, 0.0, "weights=pretrained", f"model={folder}").build_model(0)


def test_a_tensor_that_is_neither_parameter_nor_buffer_cannot_be_filled():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2))
        assert fillable(model)
        model[0].same = model[0].weight.data
        assert not fillable(model)
