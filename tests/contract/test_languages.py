"""What stands in records is said in every language: no text is missing, none is left over, none asks for more."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest
from jinja2 import meta, nodes
from languages import english_words, numbers

import dynbench
from dynbench.analysis.checks import CHECKS
from dynbench.analysis.checks.evidence import Severity
from dynbench.analysis.figures import FIGURES, caption_of
from dynbench.analysis.measures import METRICS
from dynbench.analysis.profile import PHASES
from dynbench.analysis.verdict import LEVELS, Verdict
from dynbench.engine.comm_model import build_comm_model
from dynbench.experiment.report_input import SOLVE_FIGURES, in_language, status
from dynbench.report import LANGUAGES, language_labels, load_template
from dynbench.runs.phrase import RECORDS_LANGUAGE, Phrase, environment, templates_dir, texts
from dynbench.runs.records import BY_ITSELF, COMMUNICATION, COMPUTE
from dynbench.runs.run import Status

OTHERS = [language for language in LANGUAGES if language != RECORDS_LANGUAGE]
DYNAMIC = {
    "reason": {*map(str, Verdict), "alike.ESTIMATE", "alike.interval"},
    "verdicts": {"stay", "in_doubt"},
}
"""Sentences whose key is put together where they are said."""
PARTS = {"separator", "speed", "interval"}
"""What other sentences are made of."""


def phrases_in_the_source() -> set[str]:
    """Key of every `Phrase.of("key", …)` with a key that stands there."""
    return {
        str(node.args[0].value)
        for path in Path(dynbench.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("Phrase.of", "cls.of")
        and isinstance(node.args[0], ast.Constant)
    }


def mentioned(key: str, found: Mapping[str, str]) -> set[str]:
    """The values that a text mentions, with the forms of numbers, those of the parts that it includes among them."""
    tree = environment(RECORDS_LANGUAGE).parse(found[key])
    forms = {f"{each.node} as {each.args}" for each in tree.find_all(nodes.Filter) if each.name == "form"}
    parts = [part for part in meta.find_referenced_templates(tree) if part]
    return (meta.find_undeclared_variables(tree) | forms).union(*(mentioned(part, found) for part in parts))


@pytest.mark.slow
def test_every_sentence_is_said_somewhere() -> None:
    put_together = {f"{group}.{case}" for group, cases in DYNAMIC.items() for case in cases}
    phrases = {say for say in texts() if say.split(".")[0] not in CHECKS}

    assert phrases == phrases_in_the_source() | put_together | PARTS


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_of_records_stands_in_every_language_with_the_same_values(language: str) -> None:
    ours, theirs = texts(), texts(language)
    assert ours.keys() ^ theirs.keys() == {f"status.{status}" for status in Status}
    assert [key for key in ours.keys() & theirs.keys() if mentioned(key, ours) != mentioned(key, theirs)] == []
    assert all(status(load_template(language), word) != word for word in Status)
    for key, text in theirs.items():
        written = environment(language).parse(text).find_all(nodes.TemplateData)
        assert english_words(" ".join(each.data for each in written), ("bf16",)) == [], key


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_phrase_of_a_record_is_said_with_its_numbers(language: str) -> None:
    phrase = build_comm_model("1,0.5", Path()).description
    said = in_language(load_template(language), json.loads(json.dumps(phrase.record())), "")
    assert set(numbers(said)) == set(numbers(phrase))
    assert (said == phrase) == (language == RECORDS_LANGUAGE)


def test_a_sentence_without_a_value_that_it_mentions_is_an_error() -> None:
    with pytest.raises(KeyError, match="world_size"):
        Phrase.of("lacks.ranks", missing=1, ranks=(3,))


def blocks(language: str) -> dict[str, set[str]]:
    """Every block of sentences to the names and attributes that it takes from its facts."""
    found = {}
    for path in (templates_dir() / "sentences").glob(f"*.{language}.md.j2"):
        for block in environment(language).parse(path.read_text(encoding="utf-8")).find_all(nodes.Block):
            own = {node.name for node in block.find_all(nodes.Name) if node.ctx == "store"} | {"loop"}
            roots = {node.name for node in block.find_all(nodes.Name)} - own
            assert block.name not in found, f"{block.name} stands in {path.name} and in another file"
            of_facts = [node for node in block.find_all(nodes.Getattr) if node.node != nodes.Name("words", "load")]
            found[block.name] = roots | {node.attr for node in of_facts} - {"first", "last"}
    return found


@pytest.mark.parametrize("language", OTHERS)
def test_the_blocks_of_sentences_are_those_of_the_records_language_and_tell_the_same_facts(language: str) -> None:
    theirs, ours = blocks(language), blocks(RECORDS_LANGUAGE)
    assert {name: facts ^ theirs.get(name, set()) for name, facts in ours.items() if facts != theirs.get(name)} == {}
    assert set(theirs) == set(ours)


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_not_recorded_as_a_phrase_is_shown_as_it_is(language: str) -> None:
    template = load_template(language)
    assert in_language(template, None, "written by hand") == "written by hand"
    unheard_of = Phrase("of a later version", "unheard.of").record()
    assert in_language(template, unheard_of, "") == "of a later version"
    lacking = {"say": "comm_model.given", "text": "in English", "values": {"alpha_ms": 1.0}}
    assert in_language(template, lacking, "") == "in English"


@pytest.mark.parametrize("language", OTHERS)
def test_words_of_tables_and_captions_of_figures(language: str) -> None:
    labels = load_template(language).labels
    units = {metric.unit for metric in METRICS} - {"", "%", "ms", "MB"}
    drawn = [name for kind, names in FIGURES.items() if kind != "cells" for name in names]  # which no report has
    words = {
        "units": units,
        "severities": get_args(Severity),
        "metrics": [metric.key for metric in METRICS],
        "columns": [metric.key for metric in METRICS],
        "families": [metric.family for metric in METRICS],
        "overview": ["baseline", "stored", "alike", "gain"],
        "levels": LEVELS,
        "verdicts": Verdict,
        "profile": [*PHASES, COMPUTE, COMMUNICATION, BY_ITSELF.replace(" ", "_")],
        "figures": [*drawn, *SOLVE_FIGURES],
    }
    needed = [f"{kind}.{name}" for kind, names in words.items() for name in names]

    assert [key for key in needed if key not in labels] == []
    assert [labels[key] for key in needed if english_words(labels[key], ("static",))] == []
    assert {key for key in language_labels(language) if key.startswith("units.")} == {f"units.{unit}" for unit in units}


def test_the_first_line_of_a_figure_is_its_caption_in_english() -> None:
    assert [name for figures in FIGURES.values() for name in figures if not caption_of(name).endswith(".")] == []
    assert caption_of("of_an_earlier_version") == ""
