"""Digits and their small network: learning, right answers, and what is saved."""

from __future__ import annotations

import pytest
import torch
from photographs import write_mnist

from dynbench.config.layers import load_config
from dynbench.errors import DataError, UsageError
from dynbench.workloads.mlp import DigitClassification


def configured(*more: str):
    return load_config(None, [f"workload.{each}" for each in ("name=mlp", *more)])


@pytest.fixture(scope="module")
def workload() -> DigitClassification:
    return DigitClassification(configured())


def test_its_shape(workload):
    model = workload.build_model(3)
    assert sum(parameter.numel() for parameter in model.parameters()) == 42_310
    assert all(map(torch.equal, model.parameters(), workload.build_model(3).parameters()))
    assert (len(workload.train), len(workload.eval)) == (8192, 1024)
    assert (workload.train.lengths == 1).all() and workload.positions == 1


def test_other_digits_are_other_data(tmp_path, workload):
    found = DigitClassification(configured("dataset=mnist", f"data_path={write_mnist(tmp_path)}"))
    assert (len(found.train), len(found.eval)) == (300, 60)
    assert found.train.fingerprint != workload.train.fingerprint
    assert found.facts["fingerprint"] == found.train.fingerprint


def test_what_is_saved_is_read_back(tmp_path, workload):
    model = workload.build_model(5)
    workload.save(tmp_path / "last", model.state_dict())
    workload.save(tmp_path / "last", model.state_dict())
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
    again = DigitClassification(configured("weights=pretrained", f"model={tmp_path / 'last'}")).build_model(0)
    assert all(map(torch.equal, model.parameters(), again.parameters()))


def test_other_folders_are_refused(tmp_path, workload):
    pretrained = DigitClassification(configured("weights=pretrained", f"model={tmp_path}"))
    with pytest.raises(DataError, match="expected a network that --save-model kept"):
        pretrained.build_model(0)
    workload.save(tmp_path / "other", {"0.weight": torch.zeros(2, 2)})
    with pytest.raises(UsageError, match="weights of another network than 784-50-50-10"):
        DigitClassification(configured("weights=pretrained", f"model={tmp_path / 'other'}")).build_model(0)
