from __future__ import annotations

import polars as pl
import pytest

from dynbench.config.schema import Config, Workload
from dynbench.errors import DataError, HubError
from dynbench.workloads.datasets import sst2
from dynbench.workloads.registry import build_workload


@pytest.fixture
def glue(tmp_path, monkeypatch):
    """The Parquet files of the repository's SST-2 part."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "arrow")
    folder = tmp_path / "glue"
    (folder / "sst2").mkdir(parents=True)
    rows = {"sentence": ["good film", "bad film"] * 6, "label": [1, 0] * 6, "idx": list(range(12))}
    for split in ("train", "validation"):
        pl.DataFrame(rows).write_parquet(folder / "sst2" / f"{split}-00000-of-00001.parquet")
    return folder


def test_loads_from_the_hub_cache_without_network(glue, cache_on_hub, vocab_file):
    cache_on_hub(sst2.REPOSITORY, glue, "dataset")
    workload = build_workload(Config(workload=Workload(dataset="sst2", tokenizer=str(vocab_file))))
    assert len(workload.train) == len(workload.eval) == 12
    assert workload.train.labels.tolist() == [1, 0] * 6
    assert workload.train.lengths.tolist() == [4] * 12
    assert workload.facts["train_source"] == "hub:nyu-mll/glue/sst2, train"


def test_uncached_and_unreachable_is_one_line_with_the_ways_out():
    with pytest.raises(HubError) as caught:
        sst2.load(Workload(dataset="sst2"))
    assert "'nyu-mll/glue' is not in the hub's cache" in caught.value.message
    assert "cannot be reached" in caught.value.message
    assert "\n" not in caught.value.message
    assert "--dataset tsv" in caught.value.hint


def test_a_cache_with_one_split_only_counts_as_incomplete(glue, cache_on_hub):
    (glue / "sst2" / "validation-00000-of-00001.parquet").unlink()
    cache_on_hub(sst2.REPOSITORY, glue, "dataset")
    with pytest.raises(HubError, match="incomplete in the hub's cache"):
        sst2.load(Workload(dataset="sst2"))


def test_a_broken_file_is_named(glue, cache_on_hub):
    (glue / sst2.PROBE_FILE).write_bytes(b"no parquet")
    cache_on_hub(sst2.REPOSITORY, glue, "dataset")
    with pytest.raises(DataError, match=r"train-00000-of-00001.parquet: expected Parquet"):
        sst2.load(Workload(dataset="sst2"))


def test_a_file_without_the_columns_is_named(glue, cache_on_hub):
    pl.DataFrame({"text": ["good film"], "label": [1]}).write_parquet(glue / sst2.PROBE_FILE)
    cache_on_hub(sst2.REPOSITORY, glue, "dataset")
    with pytest.raises(DataError, match="expected Parquet with columns sentence and label"):
        sst2.load(Workload(dataset="sst2"))
