"""SST-2 and Wikipedia from a hub that is a local folder: what is read and written, and one line without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace

import polars as pl
import pytest

from dynbench.cli.main import main
from dynbench.config.schema import Config, Workload
from dynbench.errors import EXIT_USAGE, DataError, HubError
from dynbench.plugins.datasets import GLUE, WikipediaOptions
from dynbench.workloads import hub
from dynbench.workloads.datasets.base import load_dataset
from dynbench.workloads.datasets.from_hub import PROBE_FILE, export
from dynbench.workloads.registry import build_workload


@pytest.fixture
def glue(tmp_path):
    """The Parquet files of the repository's SST-2 part."""
    folder = tmp_path / "glue"
    (folder / "sst2").mkdir(parents=True)
    rows = {"sentence": ["good film", "bad film"] * 6, "label": [1, 0] * 6, "idx": list(range(12))}
    for split in ("train", "validation"):
        pl.DataFrame(rows).write_parquet(folder / "sst2" / f"{split}-00000-of-00001.parquet")
    return folder


def test_sst2_is_read_from_the_hub_cache_without_network(glue, cache_on_hub, vocab_file):
    cache_on_hub(GLUE, glue, "dataset")
    workload = build_workload(Config(workload=Workload(dataset="sst2", tokenizer=str(vocab_file))))
    assert len(workload.train) == len(workload.eval) == 12
    assert workload.train.labels.tolist() == [1, 0] * 6
    assert workload.train.lengths.tolist() == [4] * 12
    assert workload.facts["train_source"] == "hub:nyu-mll/glue/sst2, train"


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (lambda file: file.unlink(), HubError, "incomplete in the hub's"),
        (lambda file: file.write_bytes(b"no parquet"), DataError, "00001.parquet: expected Parquet"),
        (lambda file: pl.DataFrame({"text": ["a"], "label": [1]}).write_parquet(file), DataError, "columns sentence"),
    ],
)
def test_a_damaged_cache_is_named(glue, cache_on_hub, spoil, error, said):
    spoil(glue / PROBE_FILE.replace("train", "validation"))
    cache_on_hub(GLUE, glue, "dataset")
    with pytest.raises(error, match=said):
        load_dataset(Workload(dataset="sst2"))


@pytest.mark.parametrize(
    ("dataset", "hint"), [("sst2", "--dataset tsv"), ("wikipedia", "dynbench data wikipedia -o FILE")]
)
def test_without_the_hub_it_is_one_line_that_says_what_to_do(dataset, hint):
    with pytest.raises(HubError, match="cannot be reached") as caught:
        load_dataset(Workload(name="causal_lm", dataset=dataset))
    assert "\n" not in caught.value.message and hint in caught.value.hint


ROWS = [{"id": str(i), "title": f"Title {i}", "text": "é" * 500, "url": "u"} for i in range(40)]
ASKED = WikipediaOptions(megabytes=0.01)


@pytest.fixture
def on_hub(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A hub that answers with `rows`, or raises what is among them; `asked` is what it was asked for."""
    found = SimpleNamespace(rows=ROWS, asked=[])

    def load(*given: object, **how: object) -> Iterator[object]:
        found.asked.append((*given, *how.items()))
        for row in found.rows:
            if isinstance(row, Exception):
                raise row
            yield row

    monkeypatch.setattr(hub, "why_unreachable", lambda *_: "")
    monkeypatch.setattr("datasets.load_dataset", load)
    return found


def test_articles_are_written_until_the_size_is_reached(on_hub, tmp_path):
    number, size = export(tmp_path / "a.json", ASKED)
    content = (tmp_path / "a.json").read_bytes()
    assert json.loads(content) == [{key: row[key] for key in ("id", "title", "text")} for row in ROWS[:number]]
    assert size == len(content) and 10_000 <= size < 11_100
    assert on_hub.asked == [("wikimedia/wikipedia", "20231101.en", ("split", "train"), ("streaming", True))]
    assert export(tmp_path / "b.json", WikipediaOptions())[0] == len(ROWS), "an edition that is smaller"


def test_a_run_fetches_them_once_and_reads_them_as_a_stream(on_hub, tmp_path):
    settings = Workload(name="causal_lm", dataset="wikipedia", megabytes=0.01, cache_dir=str(tmp_path / "c"))
    texts = [list(load_dataset(settings).train.read()) for _ in range(2)]
    assert texts[0] == texts[1] == [f"{row['title']}\n{row['text']}" for row in ROWS[: len(texts[0])]]
    assert len(on_hub.asked) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"workload\.cache_dir: .*file"):
        load_dataset(settings.model_copy(update={"cache_dir": str(tmp_path / "file")}))


@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        ([*ROWS[:3], ConnectionError("connection reset by peer")], HubError, "lost after 3 articles: connection reset"),
        ([], DataError, "has no articles"),
    ],
)
def test_what_breaks_off_leaves_no_file(on_hub, tmp_path, rows, error, said):
    on_hub.rows = rows
    with pytest.raises(error, match=said):
        export(tmp_path / "a.json", ASKED)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_the_file_and_says_what_reads_it(on_hub, tmp_path, capsys, monkeypatch):
    path = tmp_path / "a.json"
    assert main(["data", "wikipedia", "-o", str(path), "--megabytes", "0.01", "--edition", "20231101.de"]) == 0
    assert f"next  dynbench train --workload causal_lm --dataset json --data-path {path}" in capsys.readouterr().out
    assert on_hub.asked[0][1] == "20231101.de"
    for place, said in ((path, "exists already"), (tmp_path / "no" / "a.json", "cannot be written")):
        assert main(["data", "wikipedia", "-o", str(place)]) == EXIT_USAGE
        assert said in capsys.readouterr().err
    monkeypatch.setattr(hub, "why_unreachable", lambda *_: "no route")
    assert main(["data", "wikipedia", "-o", str(tmp_path / "b.json")]) == EXIT_USAGE
    assert "cannot be reached" in capsys.readouterr().err
