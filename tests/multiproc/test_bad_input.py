"""What is wrong with a file beside the data is told before a rank starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from multiproc.launches import fork

from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc


def test_a_tokenizer_folder_that_holds_none(tmp_path: Path) -> None:
    data = tmp_path / "data.tsv"
    data.write_text("sentence\tlabel\n" + "a fine film\t1\na poor one\t0\n" * 20)
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    results = tmp_path / "results"
    arguments = ("--dataset", "tsv", "--data-path", str(data), "--tokenizer", str(tokenizer))
    stdout, stderr = fork(results, "train", "--json", *arguments).communicate(timeout=300)
    assert stdout and "partial run" not in stderr, stderr
    error = json.loads(stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("data", 2), stderr
    assert "expected a tokenizer saved by transformers" in error["message"]
    assert not RunStore(results).list(), "found out before a rank starts"
