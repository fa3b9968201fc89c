import json
from dataclasses import dataclass

import pytest

from dynbench.errors import RecordError
from dynbench.runs.json_record import read_json


@dataclass
class Kept:
    name: str
    sizes: list[int]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "cannot be read: No such file"),
        ("{", "cannot be read: not JSON"),
        ("[1]", "content: "),
        ('{"name": "a"}', "sizes: Field required"),
        ('{"name": "a", "sizes": [1, "x"]}', r"sizes\.1: "),
        ('{"schema_version": 3}', "has schema version 3, this dynbench reads up to 2"),
    ],
)
def test_what_cannot_be_used_says_where(tmp_path, text, reason):
    path = tmp_path / "kept.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecordError, match=reason) as caught:
        read_json(path, Kept, "Make it again.", 2)
    assert str(path) in caught.value.message and caught.value.hint


def test_a_later_version_is_named_with_what_wrote_it(tmp_path):
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"schema_version": 3, "version": "9.1"}))
    with pytest.raises(RecordError) as caught:
        read_json(path, Kept, "", 2)
    assert "(9.1)" in caught.value.hint


def test_keys_that_nobody_knows_are_left_out(tmp_path):
    path = tmp_path / "kept.json"
    path.write_text('{"name": "a", "sizes": [1], "schema_version": 1, "more": 0}')
    assert read_json(path, Kept, "", 2) == Kept("a", [1])
