"""Articles of Wikipedia: written as the array that `json` reads, up to a size, and one line without the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dynbench.cli.main import main
from dynbench.config.schema import Workload
from dynbench.errors import EXIT_USAGE, DataError, HubError
from dynbench.plugins.datasets import WikipediaOptions
from dynbench.workloads import hub
from dynbench.workloads.datasets import wikipedia
from dynbench.workloads.datasets.registry import load_dataset

ROWS = [{"id": str(i), "title": f"Title {i}", "text": "é" * 500, "url": "u"} for i in range(40)]
ASKED = WikipediaOptions(megabytes=0.01)


@pytest.fixture
def on_hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """A hub that answers with some articles; what it was asked for."""
    asked: list[tuple[object, ...]] = []

    def load(*given: object, **how: object) -> Iterator[dict[str, str]]:
        asked.append((*given, *how.items()))
        return iter(ROWS)

    monkeypatch.setattr(hub, "why_unreachable", lambda *_: "")
    monkeypatch.setattr("datasets.load_dataset", load)
    return asked


def test_articles_are_written_until_the_size_is_reached(on_hub, tmp_path):
    number, size = wikipedia.export(tmp_path / "a.json", ASKED)
    content = (tmp_path / "a.json").read_bytes()
    assert json.loads(content) == [{key: row[key] for key in ("id", "title", "text")} for row in ROWS[:number]]
    assert size == len(content)
    assert 10_000 <= size < 11_100
    assert on_hub == [("wikimedia/wikipedia", "20231101.en", ("split", "train"), ("streaming", True))]


def test_an_edition_smaller_than_that_is_written_whole(on_hub, tmp_path):
    assert wikipedia.export(tmp_path / "a.json", WikipediaOptions())[0] == len(ROWS)


def test_a_run_fetches_them_once_and_reads_them_as_a_stream(on_hub, tmp_path):
    settings = Workload(name="causal_lm", dataset="wikipedia", megabytes=0.01, cache_dir=str(tmp_path / "c"))
    texts = [list(load_dataset(settings).train.read()) for _ in range(2)]
    assert texts[0] == texts[1] == [f"{row['title']}\n{row['text']}" for row in ROWS[: len(texts[0])]]
    assert len(on_hub) == 1


def test_without_the_hub_it_is_one_line_that_says_what_to_do(tmp_path):
    with pytest.raises(HubError) as caught:
        load_dataset(Workload(name="causal_lm", dataset="wikipedia"))
    assert "cannot be reached" in caught.value.message
    assert "\n" not in caught.value.message
    assert "dynbench data wikipedia -o FILE" in caught.value.hint


def test_a_connection_that_breaks_leaves_no_file(on_hub, tmp_path, monkeypatch):
    def load(*given: object, **how: object) -> Iterator[dict[str, str]]:
        yield from ROWS[:3]
        raise ConnectionError("connection reset by peer")

    monkeypatch.setattr("datasets.load_dataset", load)
    with pytest.raises(HubError, match="lost after 3 articles: connection reset by peer"):
        wikipedia.export(tmp_path / "a.json", ASKED)
    assert list(tmp_path.iterdir()) == []


def test_no_articles_are_said(on_hub, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *given, **how: iter([]))
    with pytest.raises(DataError, match="has no articles"):
        wikipedia.export(tmp_path / "a.json", ASKED)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_the_file_and_says_what_reads_it(on_hub, tmp_path, capsys):
    path = tmp_path / "a.json"
    assert main(["data", "wikipedia", "-o", str(path), "--megabytes", "0.01", "--edition", "20231101.de"]) == 0
    assert f"next  dynbench train --workload causal_lm --dataset json --data-path {path}" in capsys.readouterr().out
    assert on_hub[0][1] == "20231101.de"
    assert main(["data", "wikipedia", "-o", str(path)]) == EXIT_USAGE
    assert "exists already" in capsys.readouterr().err
    assert main(["data", "wikipedia", "-o", str(tmp_path / "no" / "a.json")]) == EXIT_USAGE
    assert "cannot be written" in capsys.readouterr().err


def test_the_command_without_the_hub(tmp_path, capsys):
    assert main(["data", "wikipedia", "-o", str(tmp_path / "a.json")]) == EXIT_USAGE
    assert "cannot be reached" in capsys.readouterr().err


def test_a_cache_that_is_none_is_named(on_hub, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"workload\.cache_dir: .*file"):
        load_dataset(Workload(name="causal_lm", dataset="wikipedia", cache_dir=str(tmp_path / "file")))
