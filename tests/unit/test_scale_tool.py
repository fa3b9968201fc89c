"""The tool for large JSON arrays, on a small one: it says what it is to say, and notices what it is to notice."""

from __future__ import annotations

import re

import pytest
from forked import ForkedPopen
from scale import json_array

SMALL = ("--megabytes", "2", "--shard-characters", "100000")


@pytest.mark.slow
def test_a_small_array_is_killed_gone_on_with_and_equal(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(json_array, "Popen", ForkedPopen)
    assert json_array.main([str(tmp_path), *SMALL]) == 0
    said = capfd.readouterr().out
    done, of = map(int, re.search(r"ended with -9, (\d+) of (\d+) shards finished", said).groups())
    assert 3 < done < of - 3
    found = len(json_array.files(tmp_path / "whole"))
    assert f"equal: {found} files" in said and found > 3 * of

    shard = next((tmp_path / "killed").glob("*-train-*/00002.ids.npy"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (tmp_path / "whole" / "more").touch()
    name = str(shard.relative_to(tmp_path / "killed"))
    assert json_array.differing(tmp_path / "whole", tmp_path / "killed") == sorted([name, "more"])
