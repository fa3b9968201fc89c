"""What a hub gives, or its cache: models, SST-2 and Wikipedia are read and written, and one line says it without."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import polars as pl
import pytest
from huggingface_hub import constants

from dynbench.cli.main import main
from dynbench.config.schema import Config, Workload
from dynbench.errors import EXIT_USAGE, DataError, HubError, UsageError
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


def test_the_command_writes_articles_until_the_size_is_reached(on_hub, tmp_path, capsys):
    path = tmp_path / "a.json"
    assert main(["data", "wikipedia", "-o", str(path), "--megabytes", "0.01", "--edition", "20231101.de"]) == 0
    assert f"next  dynbench train --workload causal_lm --dataset json --data-path {path}" in capsys.readouterr().out
    content, articles = path.read_bytes(), json.loads(path.read_bytes())
    assert articles == [{key: row[key] for key in ("id", "title", "text")} for row in ROWS[: len(articles)]]
    assert 10_000 <= len(content) < 11_100
    assert on_hub.asked == [("wikimedia/wikipedia", "20231101.de", ("split", "train"), ("streaming", True))]
    for place, said in ((path, "exists already"), (tmp_path / "no" / "a.json", "cannot be written")):
        assert main(["data", "wikipedia", "-o", str(place)]) == EXIT_USAGE
        assert said in capsys.readouterr().err
    whole = tmp_path / "b.json"
    assert export(whole, WikipediaOptions()) == (len(ROWS), whole.stat().st_size), "an edition that is smaller"


def test_a_run_fetches_them_once_and_reads_them_as_a_stream(on_hub, tmp_path):
    settings = Workload(name="causal_lm", dataset="wikipedia", megabytes=0.01, cache_dir=str(tmp_path / "c"))
    texts = [list(load_dataset(settings).train.read()) for _ in range(2)]
    assert texts[0] == texts[1] == [f"{row['title']}\n{row['text']}" for row in ROWS[: len(texts[0])]]
    assert [edition for _, edition, *_ in on_hub.asked] == ["20231101.en"]
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
        export(tmp_path / "a.json", WikipediaOptions())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("cached", "works", "offline", "said"),
    [
        (True, True, False, None),
        (True, False, False, None),
        (True, None, True, "is incomplete in the hub's cache .*HF_HUB_OFFLINE forbids the network"),
        (False, None, True, "is not in the hub's cache .*HF_HUB_OFFLINE forbids the network"),
        (False, None, False, "cannot be loaded from http://127.0.0.1:9: no such thing\n"),
    ],
)
def test_the_network_is_asked_for_what_the_cache_lacks(
    model_folder, cache_on_hub, monkeypatch, cached, works, offline, said
):
    """What is loaded says whether it is of the cache; what cannot be is one line, and the ways out."""
    if cached:
        cache_on_hub("someone/tiny", model_folder)
    asked = Mock(return_value="")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(hub, "why_unreachable", asked)

    def load(local_only: bool) -> bool:
        if local_only is not works:
            raise OSError("no such thing\nand much advice")
        return local_only

    refused = pytest.raises(HubError, match=rf"^k: 'someone/tiny' .*{said}(.|\n)*the ways out$")
    with refused if said else nullcontext():
        assert hub.load_from_hub("k", "someone/tiny", load, "the ways out") is works
    assert asked.called == (not offline and works is not True)


def test_what_is_no_name_is_refused():
    with pytest.raises(UsageError, match=r"^k: 'two words' is neither a local folder nor a hub name"):
        hub.load_from_hub("k", "two words", bool, "")


def test_a_hub_that_never_answers_is_given_up_and_any_answer_will_do():
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert "timed out" in hub.why_unreachable(endpoint, 0.2)
        server.accept()
        threading.Thread(target=lambda: server.accept()[0].sendall(b"HTTP/1.0 404 Not Found\r\n\r\n")).start()
        assert hub.why_unreachable(endpoint, 30) == ""


def test_local_folders_and_paths_are_told_from_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "model"):
        (tmp_path / folder).mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for path, folder in ((str(tmp_path / "model"), tmp_path / "model"), ("someone/tiny", None)):
        assert hub.local_folder("k", path) == folder
    expected = "expected a folder or a hub name"
    for mistake in ("empty", "model/config.json", "./absent", "~/absent", "a/b/c"):
        with pytest.raises(DataError, match="k: empty is an empty folder" if mistake == "empty" else expected):
            hub.local_folder("k", mistake)
