"""Images as a workload: what the model sees, what is held out, saved and read back; and where ResNets come from."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from batches import batch_of
from photographs import CLASSES, write_folder
from PIL import Image
from transformers import GPT2Config, ResNetConfig, ResNetForImageClassification, ViTConfig
from unit.workloads.conftest import configured, same

from dynbench.config.schema import Workload
from dynbench.errors import DataError, UsageError
from dynbench.workloads import image_classification as module
from dynbench.workloads.datasets.images import image_side
from dynbench.workloads.image_classification import DEVIATION, MEAN, ImageClassification, image_model


def settings(*given: str) -> Workload:
    return configured("name=image_classification", *given).workload


def classification(*more: str, data: Path | None = None) -> ImageClassification:
    """Of generated images, or of a folder of them."""
    own = () if data is None else ("dataset=image_folder", f"data_path={data}", f"cache_dir={data.parent}")
    return ImageClassification(configured("name=image_classification", "size=small", *more, *own))


@pytest.fixture(scope="module")
def workload() -> ImageClassification:
    return classification("image_size=16")


@pytest.mark.parametrize("val", [0, 3])
def test_without_a_folder_of_its_own_a_part_is_held_out(tmp_path, val):
    found = classification("image_size=16", data=write_folder(tmp_path / "data", train=30, val=val))
    assert sorted([*found.train.tokens, *found.eval.tokens]) == [*range(90 + 3 * val)]
    batch = batch_of(found, np.arange(9), data=found.eval)
    assert batch["pixels"].float().mean((2, 3)).argmax(1).tolist() == batch["labels"].tolist()


def test_a_saved_model_names_its_classes_and_says_what_it_sees_of_images(tmp_path):
    data, last, seen = write_folder(tmp_path / "data", size=(40, 40)), tmp_path / "last", []
    found = classification("image_size=56", data=data)
    model, batch = found.build_model(1).double().eval(), batch_of(found, np.flatnonzero(found.train.labels == 1)[:1])
    assert (batch["pixels"].dtype, tuple(batch["pixels"].shape)) == (torch.uint8, (1, 3, 56, 56))
    model.register_forward_pre_hook(lambda _, __, kwargs: seen.append(kwargs["pixel_values"]), with_kwargs=True)
    found.loss(model, batch)
    mean, deviation = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (MEAN, DEVIATION))
    torch.testing.assert_close(seen[0], (batch["pixels"].double() / 255 - mean) / deviation)
    found.save(last, model.float().state_dict())
    labels = json.loads((last / "config.json").read_text())["id2label"]
    assert [labels[str(number)] for number in range(3)] == list(CLASSES)
    again = classification("weights=pretrained", f"model={last}", data=data)
    assert batch_of(again, np.arange(1))["pixels"].shape[-1] == 56
    read = transformers.AutoImageProcessor.from_pretrained(last, use_fast=False)
    with Image.open(data / "train" / "bee" / "00.jpg") as image:
        theirs = torch.as_tensor(np.asarray(read(image)["pixel_values"][0]))
    torch.testing.assert_close(theirs.double(), seen[0][0], rtol=0, atol=0.05)


def test_one_image_alone_is_trained_on_too(workload):
    """Its last maps are one pixel large."""
    model, one = workload.build_model(0).double(), batch_of(workload, np.array([4]))
    alone = workload.loss(model, one)
    alone.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    twice = {name: torch.cat((tensor, tensor)) for name, tensor in one.items()}
    assert workload.loss(model, twice).item() == pytest.approx(2 * alone.item())


@pytest.mark.parametrize(
    ("said", "side"),
    [
        ('{"size": {"height": 96, "width": 96}}', 96),
        ('{"size": 64}', 64),
        ('{"size": {"shortest_edge": 256}, "crop_size": {"height": 160, "width": 160}}', 160),
        ('{"size": {"height": 96, "width": 64}}', None),
        ("{}", None),
    ],
)
def test_other_models_say_it_in_other_words(tmp_path, said, side):
    (tmp_path / "preprocessor_config.json").write_text(said)
    refused = pytest.raises(DataError, match="the side of a square cannot be read in it")
    with refused if side is None else nullcontext():
        assert image_side(settings("weights=pretrained", f"model={tmp_path}"))[0] == side


NARROW = {"embedding_size": 8, "hidden_sizes": [16, 32, 64, 128], "depths": [2, 1, 1, 2]}


def of_torchvision(name: str) -> str:
    """What it calls a parameter of transformers."""
    for ours, theirs in (
        (r"resnet\.embedder\.embedder\.convolution", "conv1"),
        (r"resnet\.embedder\.embedder\.normalization", "bn1"),
        (r"resnet\.encoder\.stages\.(\d)\.layers", lambda stage: f"layer{int(stage[1]) + 1}"),
        (r"layer\.(\d)\.convolution", lambda part: f"conv{int(part[1]) + 1}"),
        (r"layer\.(\d)\.normalization", lambda part: f"bn{int(part[1]) + 1}"),
        (r"shortcut\.convolution", "downsample.0"),
        (r"shortcut\.normalization", "downsample.1"),
        (r"classifier\.1", "fc"),
    ):
        name = re.sub(ours, theirs, name)
    return name


def test_a_file_of_torchvisions_weights_is_read_and_another_head_stays_random(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "ResNetConfig", lambda: ResNetConfig(**NARROW))
    path, wanted = tmp_path / "resnet50-0676.pth", ResNetForImageClassification(ResNetConfig(**NARROW, num_labels=7))
    state = {of_torchvision(name): torch.randn_like(tensor.float()) for name, tensor in wanted.state_dict().items()}
    assert {"conv1.weight", "layer1.0.downsample.1.running_var", "layer4.1.bn3.bias", "fc.bias"} <= set(state)
    wanted.load_state_dict({name: state[of_torchvision(name)] for name in wanted.state_dict()})
    given = settings("weights=pretrained", f"model={path}")
    torch.save(state, path)
    assert same(image_model(given, 7, 32).build(0), wanted) and "did not match" not in caplog.text
    torch.save(state | {"further": torch.zeros(1)}, path)
    source = image_model(given, 7, 32)
    assert source.facts["source"] == "pretrained resnet50-0676.pth"
    assert not source.config.downsample_in_bottleneck, "as in torchvision the second convolution has the stride"
    assert same(source.build(0), wanted)
    assert "1 parameters did not match and start from random weights: further" in caplog.text
    assert image_model(given, 3, 32).build(0).classifier[1].weight.shape == (3, 128)
    assert "fc.weight, fc.bias, further" in caplog.text
    del state["layer2.0.conv2.weight"]
    for content, error, said in (
        (state, UsageError, r"1 parameters are missing.*stages.1.layers.0.layer.1.convolution.weight"),
        ([1, 2], DataError, "expected parameters by name"),
    ):
        torch.save(content, path)
        with pytest.raises(error, match=said):
            source.build(0)
    path.write_bytes(b"no weights")
    with pytest.raises(DataError, match=r"resnet50-0676.pth: expected weights of a ResNet-50"):
        source.build(0)


def test_other_architectures_are_tried_on_images_of_the_size(tmp_path):
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ViTConfig(**shape, image_size=32, patch_size=8).save_pretrained(tmp_path)
    given = settings("weights=random", f"model={tmp_path}")
    with pytest.raises(UsageError, match="cannot classify images of 48 by 48 pixels"):
        image_model(given, 3, 48).build(0)
    GPT2Config(n_embd=8, n_layer=1, n_head=1).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="makes no image classifier"):
        image_model(given, 3, 32).build(0)
