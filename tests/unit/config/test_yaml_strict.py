from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynbench.config.yaml_strict import dump_yaml, parse_scalar, parse_yaml, read_yaml
from dynbench.errors import ConfigError

SCALARS = {
    "1e-4": 1e-4,
    ".5": 0.5,
    "-.5e+1": -5.0,
    "no": "no",
    "true": True,
    "tRUE": "tRUE",
    "3:30": "3:30",
    "012": 12,
    "0o17": 15,
    "1_000": "1_000",
    "2026-11-20": "2026-11-20",
    "~": None,
    "'12'": "12",
    "[1, a, [2.0]]": [1, "a", [2.0]],
    "{1: 2.5, a: ~}": {1: 2.5, "a": None},
    "=": "=",
}


@pytest.mark.parametrize("text", SCALARS)
def test_scalars_follow_yaml_1_2(text):
    for line in (text, f"{text} #{'x' * 5_000}"):  # what may nest deeply is read by another loader
        seen = parse_scalar(line, "here")
        assert (seen, type(seen)) == (SCALARS[text], type(SCALARS[text]))
    assert parse_yaml(dump_yaml({"key": text}), "f.yaml").mapping == {"key": text}, "a text stays one"


def test_duplicate_keys_at_all_depths_are_all_reported():
    with pytest.raises(ConfigError) as caught:
        parse_yaml("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n", "f.yaml")
    assert caught.value.problems == (
        "f.yaml:4: b.c: given twice, first in line 3; keep one",
        "f.yaml:5: a: given twice, first in line 1; keep one",
    )


MISTAKES = {
    "a: [1": "f.yaml:1: not valid YAML: while parsing a flow sequence, expected ',' or ']'",
    "a: 1\nb: c: d": "f.yaml:2: not valid YAML: mapping values are not allowed here",
    "a: 1\n\tb: 2": "f.yaml:2: not valid YAML: while scanning for the next token, found character '\\t'",
    "a: @latest": "f.yaml:1: not valid YAML: while scanning for the next token, found character '@' that cannot",
    "a: 1\n---\nb: 2": "f.yaml:2: not valid YAML: expected a single document in the stream",
    "a: *nobody": "f.yaml:1: not valid YAML: found undefined alias 'nobody'",
    "a: !!python/name:os.system x": "f.yaml:1: a: the tag !!python/name:os.system is not supported",
    "a: !!set {b: null}": "f.yaml:1: a: the tag !!set is not supported",
    "a: [!!pairs [b: 1]]": "f.yaml:1: a.0: the tag !!pairs is not supported",
    "a: 1\n? [1, 2]\n: 3": "f.yaml:2: top level: a key must be text or a whole number, not a list or mapping",
    "true: 3": "f.yaml:1: top level: a key must be text or a whole number, not 'true'; quote it",
    "- a": "f.yaml:1: expected `key: value` lines at the top level",
    "a: b\nc: \0": "f.yaml:2: not valid YAML: unacceptable character",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_carry_file_and_line(text):
    (problem,) = read_yaml(text, "f.yaml").problems
    assert problem.startswith(MISTAKES[text]) and "\n" not in problem


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(texts, plain, max_size=4))
def test_what_is_dumped_is_read_back(mapping):
    assert parse_yaml(dump_yaml(mapping), "f.yaml").mapping == mapping


@given(st.text())
def test_any_text_gives_a_document_or_problems(text):
    document = read_yaml(text, "f.yaml")
    assert isinstance(document.mapping, dict)
    assert all(problem.startswith("f.yaml") and "\n" not in problem for problem in document.problems)


def test_nesting_without_end_is_a_mistake_and_ends_nothing():
    for text in ("a: " + "[" * 5000, "- " * 5000 + "a", "a: " + "{b: " * 5000 + "}" * 5000):
        assert read_yaml(text, "f.yaml").problems == ["f.yaml:1: nested too deeply to be read"]
        with pytest.raises(ConfigError, match="key: nested too deeply to be read"):
            parse_scalar(text, "key")
