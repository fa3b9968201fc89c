"""Random weights in the shape of any configuration: by its own names for things, or refused with the reason."""

from __future__ import annotations

import json
import logging
import sys

import numpy as np
import pytest
import torch
from architectures import CONFIGS, TABLE, write_config
from batches import batch_of

from dynbench.config.layers import load_config
from dynbench.engine.launching.resolve import Machine, resolve
from dynbench.errors import DataError, HubError, UsageError
from dynbench.runs.store import RunStore
from dynbench.workloads.first_step import Trial, fit_for_training
from dynbench.workloads.pretrained_model import model_source
from dynbench.workloads.registry import build_workload


def workload(folder, *overrides):
    settings = [f"workload.model={folder}", "workload.max_length=100", "workload.subset=200", *overrides]
    return build_workload(load_config(None, settings))


def rates(model):
    return {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}


@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_parameter_left_to_train_gets_a_gradient_and_padding_changes_nothing(architecture, tmp_path, caplog):
    made = workload(write_config(tmp_path / "m", architecture), "workload.dropout=0")
    model = made.build_model(3)
    assert model.training and not caplog.text.count("padding changes")
    short, long = (int(pick(made.train.lengths)) for pick in (np.argmin, np.argmax))
    batch = batch_of(made, np.array([short, long]))
    together = made.loss(model, batch)
    together.backward()
    assert all(part.grad is not None for part in model.parameters() if part.requires_grad)
    apart = [made.loss(model, batch_of(made, np.array([i]))).item() for i in (short, long)]
    assert together.item() == pytest.approx(sum(apart), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", CONFIGS)
def test_equal_seeds_give_equal_weights(architecture, tmp_path):
    made, state = workload(write_config(tmp_path / "m", architecture)), torch.random.get_rng_state()
    first, again, other = (made.build_model(seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_dropout_goes_by_each_architectures_own_names(architecture, dropout, tmp_path, caplog):
    made = workload(write_config(tmp_path / "m", architecture), f"workload.dropout={dropout}")
    model = made.build_model(0)
    told = {key: rate for key, rate in made.facts["model"]["dropout"].items() if rate is not None}
    assert set(told.values()) == {dropout}
    assert rates(model) <= {dropout}
    assert "two passes differ" not in caplog.text
    batch = batch_of(made, np.arange(8))
    torch.manual_seed(0)
    first, again = made.loss(model, batch), made.loss(model, batch)
    assert torch.equal(first, again) is (dropout == 0)


def test_dropout_that_cannot_be_switched_off_is_warned_of(tmp_path, caplog):
    made = workload(write_config(tmp_path / "m", "bert"), "workload.dropout=0")

    class Noisy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = made.build_model(0)

        def forward(self, **batch):
            found = self.inner(**batch)
            found.logits = torch.nn.functional.dropout(found.logits, 0.5, self.training)
            return found

    torch.manual_seed(1)
    fit_for_training(Noisy(), "noisy", Trial(20, 300, 0, 2, None, 0.0))
    assert "two passes differ in spite of workload.dropout 0" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "positions"),
    [("bert", TABLE), ("gpt2", TABLE), ("llama", TABLE), ("bart", TABLE), ("roberta", TABLE - 1), ("mpnet", TABLE - 2),
     ("t5", None), ("bloom", None)],
)  # fmt: skip
def test_positions_are_those_that_samples_can_use(architecture, positions, tmp_path):
    made = workload(write_config(tmp_path / "m", architecture), "workload.dataset=lognormal")
    assert made.positions == positions
    longest = positions or 100
    assert made.train.lengths.max() == longest
    made.loss(made.build_model(0), batch_of(made, np.array([np.argmax(made.train.lengths)]), 64))


def test_the_vocabulary_grows_to_the_datas_and_keeps_what_it_has_beyond(tmp_path):
    folder = write_config(tmp_path / "m", "bert")
    assert workload(folder).facts["model"]["vocab_size"] == 4096
    larger = write_config(tmp_path / "n", "bert", vocab_size=5000)
    assert workload(larger).build_model(0).get_input_embeddings().num_embeddings == 5000


def test_parameters_that_classify_nothing_are_frozen(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folder = write_config(tmp_path / "m", "xlnet", vocab_size=300, d_model=16, n_layer=1, n_head=2, d_inner=32)
    frozen = {key for key, part in workload(folder).build_model(0).named_parameters() if not part.requires_grad}
    assert "transformer.mask_emb" in frozen and "parameters get no gradient" in caplog.text
    assert "padding changes what a sample gives" in caplog.text


def test_whole_layers_are_never_left_out(tmp_path, caplog):
    made = workload(write_config(tmp_path / "m", "opt", layerdrop=0.5))
    assert "skips whole layers" in caplog.text
    assert made.build_model(0).config.layerdrop == 0


def test_experts_that_the_data_choose_are_refused():
    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(50, 2)
            self.experts = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(2))

        def forward(self, input_ids, attention_mask):
            hidden = (self.embed(input_ids) * attention_mask[..., None]).sum(dim=1)
            return type("Out", (), {"logits": self.experts[0](hidden)})()

    with pytest.raises(UsageError, match="mixture of experts"):
        fit_for_training(Experts(), "mine", Trial(20, 50, 0, 2, None, None))


@pytest.mark.parametrize(
    ("content", "error", "told"),
    [
        ({"model_type": "vit"}, UsageError, r"\(vit\) makes no text classifier: Unrecognized configuration class"),
        ({"model_type": "bert", "hidden_size": 15}, UsageError, r"\(bert\) makes no text classifier: .*multiple"),
        ({"model_type": "no-such"}, DataError, "no-such"),
        ({}, DataError, "model_type"),
        ("{torn", DataError, "expected a model saved by transformers"),
        ({"model_type": "xmod", "num_hidden_layers": 1, "hidden_size": 12, "vocab_size": 300}, UsageError,
         r"\(xmod\) cannot classify samples of 4 to 100 token ids: ValueError: Input language unknown"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused_by_name_with_the_reason(content, error, told, tmp_path):
    (tmp_path / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(error, match=rf"^workload\.model: {tmp_path}.*{told}") as caught:
        workload(tmp_path).build_model(0)
    assert "\n" not in caught.value.message


def test_code_that_a_folder_brings_along_is_never_run(tmp_path, monkeypatch):
    mark = tmp_path / "was-run"
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Config: ...\n")
    auto = {"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match=r"workload\.model"):
        workload(tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("overrides", "shape"),
    [((), "model"), (("workload.size=base",), "base"), (("workload.size=small",), "small")],
)
def test_size_decides_over_the_folder_and_the_decision_is_kept(overrides, shape, tmp_path):
    folder = write_config(tmp_path / "m", "bert")
    config = load_config(None, [f"workload.model={folder}", "launch.nproc=2", *overrides])
    resolved = resolve(config, Machine(cores=2, gpus=0, bf16=False), RunStore(tmp_path))
    assert resolved.config.workload.size == shape
    assert ("workload.size" in resolved.decisions) is (not overrides)
    assert ("digest" in model_source(resolved.config.workload, 300, 0, 2).facts) is (shape == "model")


def test_hub_names_and_folders_without_a_configuration_keep_the_small_shape(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    for name in ("distilbert-base-uncased", str(tmp_path)):
        assert load_config(None, [f"workload.model={name}"]).workload.shape == "small"


def test_a_hub_name_is_built_where_size_asks_for_it(tmp_path, cache_on_hub):
    cache_on_hub("someone/tiny", write_config(tmp_path / "m", "bert"))
    asked = load_config(None, ["workload.model=someone/tiny", "workload.size=model"]).workload
    source = model_source(asked, 300, 0, 2)
    assert source.facts["architecture"] == "bert" and source.facts["digest"] is None
    with pytest.raises(HubError):
        model_source(asked.model_copy(update={"model": "someone/other"}), 300, 0, 2)


def test_the_file_of_the_configuration_is_known_by_its_digest(tmp_path):
    folder = write_config(tmp_path / "m", "bert")
    first = workload(folder).facts["model"]
    write_config(folder, "bert", hidden_act="relu")
    assert len(first["digest"]) == 16 and workload(folder).facts["model"]["digest"] != first["digest"]
