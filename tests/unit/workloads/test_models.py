"""Models of every workload and architecture: seeds, dropout, losses, saved, without values; text classifiers' own."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from architectures import CONFIGS, TABLE, write_config
from batches import batch_of
from safetensors.torch import load_file, save_file
from torch import nn
from unit.workloads.conftest import DAMAGES, configured, same

from dynbench.config.schema import Workload
from dynbench.errors import DataError, UsageError
from dynbench.plugins import WORKLOADS
from dynbench.sync.synchronised import fillable
from dynbench.workloads.base import BuildsEmpty
from dynbench.workloads.models import ModelSource
from dynbench.workloads.registry import build_workload
from dynbench.workloads.text_classification import Trial, model_source

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
    return build_workload(configured(*given))


def rates(model: nn.Module) -> set[float]:
    return {module.p for module in model.modules() if isinstance(module, nn.Dropout)}


def described(model: nn.Module) -> list[object]:
    """Mode, names, shapes, layouts, types and dropout."""
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
    dropouts = [(name, each.p) for name, each in model.named_modules() if isinstance(each, nn.Dropout)]
    return [model.training, *((name, each.shape, each.stride(), each.dtype) for name, each in tensors), *dropouts]


@pytest.mark.slow
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


OF_WEIGHTS = DAMAGES | {"of another shape": of_another_shape}


@pytest.mark.parametrize(
    ("name", "damage"),
    [*product(WORKLOADS, ("absent", "of another shape")), *product(["text_classification"], ("garbage", "cut"))],
)
def test_weights_that_cannot_be_used_are_named(tmp_path, name, damage):
    made, folder = built(tmp_path, name), tmp_path / "last"
    made.save(folder, made.build_model(0).state_dict())
    OF_WEIGHTS[damage](folder / WEIGHTS)
    error = DataError if damage in DAMAGES else UsageError
    with pytest.raises(error, match=rf"^workload\.model: .*{folder}"):
        built(tmp_path, name, None, 0.0, "weights=pretrained", f"model={folder}").build_model(0)


def test_a_tensor_that_is_neither_parameter_nor_buffer_cannot_be_filled():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2))
        assert fillable(model)
        model[0].same = model[0].weight.data
        assert not fillable(model)


@pytest.fixture
def of(tmp_path):
    """`of(architecture, *settings, **changes)` is a workload of its tiny configuration with changes."""
    given = ("max_length=100", "subset=200")
    return lambda architecture, *settings, **changes: build_workload(
        configured(f"model={write_config(tmp_path / 'm', architecture, **changes)}", *given, *settings)
    )


@pytest.fixture(scope="module")
def workload():
    return build_workload(configured("size=small", "dropout=0", "subset=200"))


def test_collate_pads_to_the_longest_rounded_up(workload):
    lengths, labels = workload.train.lengths, workload.train.labels
    ids = np.array([np.argmax(lengths == length) for length in (3, 7)])
    batch, (rows, valid) = batch_of(workload, ids, 4), workload.train.padded(ids, 8, 0)
    wanted = {"input_ids": rows, "attention_mask": valid, "labels": labels[ids]}
    torch.testing.assert_close(batch, {name: torch.from_numpy(each).long() for name, each in wanted.items()})


def test_an_evaluation_has_the_loss_and_the_right_answers_of_the_logits(workload):
    model, batch = workload.build_model(0).eval(), batch_of(workload, np.arange(12))
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss = pytest.approx(workload.loss(model, batch).item(), rel=1e-6)
        right = (logits.argmax(1) == batch["labels"]).sum().item()
        assert workload.eval_sums(model, batch) == {"loss_sum": loss, "correct": right}
    assert workload.loss(model.bfloat16(), batch).dtype == torch.float32


def random_model(vocab_size: int = 50, num_labels: int = 2, **settings) -> ModelSource:
    return model_source(Workload(**settings), vocab_size, 0, num_labels)


def test_sizes_and_dropout_of_random_weights():
    small = random_model(num_labels=3).config
    assert (small.dim, small.n_layers, small.vocab_size, small.num_labels) == (256, 2, 50, 3)
    base = random_model(size="base").config
    assert (base.dim, base.n_layers, base.n_heads, base.vocab_size) == (768, 6, 12, 30522)
    assert random_model(40_000, size="base").config.vocab_size == 40_000
    assert rates(random_model().build(0)) == {0.1, 0.2}


def test_a_trial_warns_of_dropout_that_cannot_be_switched_off_and_refuses_experts_that_the_data_choose(of, caplog):
    model = of("bert", "dropout=0").build_model(0)
    noise = model.classifier.register_forward_hook(lambda module, _, logits: F.dropout(logits, 0.5, module.training))
    torch.manual_seed(1)
    trial = Trial(20, 300, 0, 2, None, 0.0)
    trial.passed(model, "noisy")
    assert "two passes differ in spite of workload.dropout 0" in caplog.text
    noise.remove()
    model.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    with pytest.raises(UsageError, match="mixture of experts"):
        trial.passed(model, "mine")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "positions"),
    [("bert", TABLE), ("llama", TABLE), ("bart", TABLE), ("roberta", TABLE - 1), ("mpnet", TABLE - 2), ("t5", None)],
)
def test_positions_are_those_that_samples_can_use_and_longer_ones_are_cut(architecture, positions, of, caplog):
    """Nothing is padded beyond them."""
    made = of(architecture, "dataset=lognormal")
    assert made.positions == positions
    assert made.train.lengths.max() == made.eval.lengths.max() == (positions or 100)
    assert positions is None or f"samples are cut to {positions}" in caplog.text
    assert made.facts["decisions"].get("workload.max_length", {}).get("value") == positions
    made.loss(made.build_model(0), batch_of(made, np.array([np.argmax(made.train.lengths)]), 64))


def test_the_vocabulary_grows_to_the_datas_and_keeps_what_it_has_beyond(of):
    assert of("bert").facts["model"]["vocab_size"] == 4096
    assert of("bert", vocab_size=5000).build_model(0).get_input_embeddings().num_embeddings == 5000


def test_parameters_that_classify_nothing_are_frozen(of, caplog):
    caplog.set_level(logging.INFO)
    model = of("xlnet", vocab_size=300, d_model=16, n_layer=1, n_head=2, d_inner=32).build_model(0)
    frozen = {key for key, part in model.named_parameters() if not part.requires_grad}
    assert "transformer.mask_emb" in frozen and "parameters get no gradient" in caplog.text
    assert "padding changes what a sample gives" in caplog.text


def test_whole_layers_are_never_left_out(of, caplog):
    made = of("opt", layerdrop=0.5)
    assert "skips whole layers" in caplog.text and made.build_model(0).config.layerdrop == 0


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        ({"model_type": "vit"}, UsageError, r"\(vit\) makes no text classifier: .*Unrecognized configuration class"),
        ({"model_type": "bert", "hidden_size": 15}, UsageError, r"\(bert\) makes no text classifier: .*multiple"),
        ({"model_type": "no-such"}, DataError, "no-such"),
        ("{torn", DataError, "expected a model saved by transformers"),
        ({"model_type": "xmod", "num_hidden_layers": 1, "hidden_size": 12, "vocab_size": 300}, UsageError,
         r"\(xmod\) cannot classify samples of 4 to 100 token ids: ValueError: Input language unknown"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused_by_name_with_the_reason(content, error, said, tmp_path):
    (tmp_path / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(error, match=rf"^workload\.model: {tmp_path}.*{said}") as caught:
        build_workload(configured(f"model={tmp_path}", "max_length=100")).build_model(0)
    assert "\n" not in caught.value.message


def test_of_a_folder_whose_shape_is_taken_the_digest_is_recorded(tmp_path):
    folder = write_config(tmp_path / "m", "bert")
    first = random_model(300, model=str(folder)).facts
    write_config(folder, "bert", hidden_act="relu")
    assert first["digest"] != random_model(300, model=str(folder)).facts["digest"]
    assert "digest" not in random_model(300, model=str(folder), size="small").facts


def pretrained(name: object, num_labels: int = 2, vocab_size: int = 15, **more) -> ModelSource:
    return random_model(vocab_size, num_labels, model=str(name), weights="pretrained", **more)


def test_the_body_is_the_stored_one_and_the_head_follows_the_seed(model_folder, caplog):
    caplog.set_level(logging.INFO)
    stored = transformers.DistilBertModel.from_pretrained(model_folder)
    first, again, other = (pretrained(model_folder).build(seed) for seed in (1, 1, 2))
    assert same(first.distilbert, stored) and same(first, again) and not same(first.classifier, other.classifier)
    assert "starts from random weights" in caplog.text and first.training


def test_a_stored_head_stays_where_it_fits_and_half_precision_becomes_fp32(model_folder, tmp_path):
    tuned = pretrained(model_folder, num_labels=3).build(5)
    tuned.half().save_pretrained(tmp_path / "tuned")
    again = pretrained(tmp_path / "tuned", num_labels=3).build(6)
    assert torch.equal(again.classifier.weight, tuned.classifier.weight.float())
    assert {parameter.dtype for parameter in again.parameters()} == {torch.float32}
    other = pretrained(tmp_path / "tuned", num_labels=2).build(6)
    assert other.classifier.weight.shape == (2, 16) and same(other.distilbert, again.distilbert)


def test_a_smaller_vocabulary_is_refused(model_folder):
    with pytest.raises(UsageError, match="knows 15 tokens, the data have 16"):
        pretrained(model_folder, vocab_size=16)
