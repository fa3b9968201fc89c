"""Images as a workload: what the model sees, that it learns, what is held out, saved and read back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from batches import batch_of
from photographs import CLASSES, write_folder
from PIL import Image

from dynbench.config.layers import load_config
from dynbench.errors import DataError
from dynbench.workloads.datasets.images import image_side
from dynbench.workloads.image_classification import DEVIATION, MEAN, ImageClassification


def configured(*more: str):
    given = ("name=image_classification", "size=small", *more)
    return load_config(None, [*(f"workload.{each}" for each in given), "train.global_batch=8"])


@pytest.fixture(scope="module")
def workload() -> ImageClassification:
    return ImageClassification(configured("image_size=16"))


def test_what_the_model_sees(workload: ImageClassification) -> None:
    ids = np.array([4, 9, 2])
    batch = batch_of(workload, ids)
    assert (batch["pixels"].dtype, tuple(batch["pixels"].shape)) == (torch.uint8, (3, 3, 16, 16))
    seen = []
    model = workload.build_model(0).double()
    model.register_forward_pre_hook(lambda _, __, kwargs: seen.append(kwargs["pixel_values"]), with_kwargs=True)
    workload.loss(model, batch)
    mean, deviation = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (MEAN, DEVIATION))
    torch.testing.assert_close(seen[0], (batch["pixels"].double() / 255 - mean) / deviation)


def test_generated_images_have_32_pixels_unless_asked_otherwise() -> None:
    found = ImageClassification(configured())
    assert batch_of(found, np.arange(1))["pixels"].shape[-1] == 32
    assert found.facts["decisions"]["workload.image_size"]["value"] == 32


def test_it_learns_generated_images(workload: ImageClassification) -> None:
    model, order = workload.build_model(0), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(60):
        loss = workload.loss(model, batch_of(workload, order.integers(len(workload.train), size=32))) / 32
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        sums = workload.eval_sums(model, batch_of(workload, np.arange(256), data=workload.eval))
    assert sums["correct"] / 256 > 0.3, "chance is 0.1"


def test_without_a_folder_of_its_own_a_part_is_held_out(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data", train=10, val=0)
    found = ImageClassification(
        configured("dataset=image_folder", f"data_path={folder}", "image_size=16", f"cache_dir={tmp_path}", "subset=20")
    )
    assert (len(found.train), len(found.eval)) == (20, 3)
    numbers = {int(number) for data in (found.train, found.eval) for number in data.tokens}
    assert len(numbers) == 23
    for data in (found.train, found.eval):
        batch = batch_of(found, np.arange(len(data)), data=data)
        assert batch["pixels"].float().mean((2, 3)).argmax(1).tolist() == batch["labels"].tolist()


def test_classes_are_named_in_what_is_saved(tmp_path: Path) -> None:
    more = ("dataset=image_folder", f"data_path={write_folder(tmp_path / 'data')}", f"cache_dir={tmp_path}")
    found = ImageClassification(configured("image_size=16", *more))
    model = found.build_model(1)
    found.save(tmp_path / "last", model.state_dict())
    config = json.loads((tmp_path / "last" / "config.json").read_text())
    assert [config["id2label"][str(number)] for number in range(3)] == list(CLASSES)
    again = ImageClassification(
        configured("image_size=16", *more, "weights=pretrained", f"model={tmp_path / 'last'}")
    ).build_model(9)
    state, kept = model.state_dict(), again.state_dict()
    assert all(torch.equal(state[name], kept[name]) for name in state)


def test_expected_images_are_those_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ImageClassification(configured("image_size=16", "workers=1"))
    told = []
    monkeypatch.setattr(found._decoder, "expect", lambda numbers: told.extend(numbers))
    found.expect([np.array([5, 3]), np.array([8])])
    assert told == [5, 3, 8]
    assert (batch_of(found, np.array([5]))["pixels"] == batch_of(found, np.array([5]))["pixels"]).all()


def test_one_image_alone_is_trained_on_too(workload: ImageClassification) -> None:
    """Its last maps are one pixel large; where they are larger, it is the same as without the second copy."""
    model, one = workload.build_model(0).double(), batch_of(workload, np.array([4]))
    alone = workload.loss(model, one)
    alone.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    twice = {name: torch.cat((tensor, tensor)) for name, tensor in one.items()}
    assert workload.loss(model, twice).item() == pytest.approx(2 * alone.item())
    large = ImageClassification(configured("image_size=64"))
    model, one = large.build_model(0).double(), batch_of(large, np.array([4]))
    pixels = (one["pixels"].double() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)
    plain = torch.nn.functional.cross_entropy(model(pixel_values=pixels).logits, one["labels"])
    assert large.loss(model, one).item() == pytest.approx(plain.item())


def test_a_saved_model_says_how_large_its_images_are(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data", size=(40, 40))
    more = ("dataset=image_folder", f"data_path={folder}", f"cache_dir={tmp_path}")
    found = ImageClassification(configured("image_size=56", *more))
    found.save(tmp_path / "last", found.build_model(1).state_dict())
    again = ImageClassification(configured(*more, "weights=pretrained", f"model={tmp_path / 'last'}"))
    assert batch_of(again, np.arange(1))["pixels"].shape[-1] == 56
    assert str(tmp_path / "last") in again.facts["decisions"]["workload.image_size"]["reason"]
    read = transformers.AutoImageProcessor.from_pretrained(tmp_path / "last", use_fast=False)
    with Image.open(tmp_path / "data" / "train" / "bee" / "00.jpg") as image:
        theirs = torch.as_tensor(np.asarray(read(image)["pixel_values"][0]))
    ours = batch_of(found, np.flatnonzero(found.train.labels == 1)[:1])["pixels"][0] / 255
    ours = (ours - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)
    assert theirs.shape == ours.shape and (theirs - ours).abs().max() < 0.05


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
def test_other_models_say_it_in_other_words(tmp_path: Path, said: str, side: int | None) -> None:
    (tmp_path / "preprocessor_config.json").write_text(said)
    settings = configured("weights=pretrained", f"model={tmp_path}").workload
    if side is None:
        with pytest.raises(DataError, match="the side of a square cannot be read in it"):
            image_side(settings)
    else:
        assert image_side(settings)[0] == side


def test_a_model_of_the_hub_says_it_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = ("weights=pretrained", "model=someone/resnet", "dataset=image_folder", f"data_path={tmp_path}")
    settings = configured(*named).workload
    said = tmp_path / "preprocessor_config.json"
    said.write_text('{"size": 96}')
    for found, side, reason in (
        (str(said), 96, str(said)),
        (None, 224, "someone/resnet has no preprocessor_config.json here"),
    ):
        monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, found=found: found)
        assert image_side(settings)[0] == side and reason in image_side(settings)[1]
