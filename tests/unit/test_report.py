"""Templates: what is filled, what is refused, and that both languages are complete."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dynbench.analysis.questions import QUESTIONS
from dynbench.report import (
    LANGUAGES,
    Template,
    TemplateError,
    fill,
    language_labels,
    load_template,
    substitute,
    unwrapped,
)

FRONT = "---\nwords:\n  not_measured: not measured\n  greeting: hello {{ who }}\n---\n"
CELLS = [["x", "1 |", "", "y"], ["z", "2", "", ""]]


def template(tmp_path: Path, body: str, front: str = FRONT) -> Template:
    path = tmp_path / "mine.md"
    path.write_text(front + body, encoding="utf-8")
    return load_template("en", path)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("{{who}} and {{ words.greeting }}", "x and hello {{ who }}"),
        ("[{{ nothing }}] [{{ empty }}]", "[not measured] []"),
        (
            '{{ lines|table(1, "a", "b", "c", "d") }}',
            "| a | b | d |\n| --- | ---: | ---: |\n| x | 1 \\| | y |\n| z | 2 |  |",
        ),
    ],
    ids=["labels", "none", "table"],
)
def test_what_a_template_is_filled_with(tmp_path: Path, body: str, text: str) -> None:
    values = {"who": "x", "nothing": None, "empty": "", "lines": CELLS}
    assert fill(template(tmp_path, body), values).strip("\n") == text


def test_a_body_says_a_block_with_values_of_its_own(tmp_path: Path) -> None:
    body = '{{ say("formula_table", lines=lines) }}'
    text = fill(template(tmp_path, body), {"lines": CELLS, "who": "x"})
    assert text.splitlines()[0] == "| quantity | value | with |"


def test_unknown_placeholders_are_named_with_their_lines_and_the_known_ones(tmp_path: Path) -> None:
    loaded = template(tmp_path, "\n{{ who }}\n{{ best.speedpu }}\n", FRONT.replace("who", "whom"))
    with pytest.raises(TemplateError) as caught:
        fill(loaded, {"who": "x", "best.speedup": "1"})
    first, second = caught.value.message.splitlines()
    assert f"{tmp_path}/mine.md:4: " in first and "{{ whom }}" in first
    assert f"{tmp_path}/mine.md:8: " in second and "{{ best.speedpu }}" in second and "best.speedup" in second
    assert "best.speedup, who" in caught.value.hint
    assert caught.value.exit_code == 2


def test_an_unclosed_placeholder_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"mine.md:7: "):
        fill(template(tmp_path, "fine\nbroken {{ who }\n"), {"who": "x"})


def test_a_template_without_front_matter_uses_the_texts_of_its_language(tmp_path: Path) -> None:
    assert fill(template(tmp_path, "{{ a }}", front=""), {"a": None}) == "not measured"


def test_mistakes_in_the_front_matter_name_the_line_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"mine.md:3: .*given twice"):
        template(tmp_path, "", "---\na: 1\na: 2\n---\n")


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_result_is_typed_by_hand(language: str) -> None:
    body = load_template(language).body.partition("## References")[0].partition("## 参考文献")[0]
    assert re.findall(r"\d+(?:\.\d+)? ?(?:%|ms\b|x\b|times\b|倍)", body) == []


@pytest.mark.parametrize("template", sorted({question.template for question in QUESTIONS.values()}))
def test_both_languages_say_the_same_things(template: str) -> None:
    en, zh = (load_template(language, name=template) for language in LANGUAGES)
    named = [re.findall(r"\{\{ ([\w.]+) \}\}|\{% (if .+?) %\}|^(```\w+)", each.body, re.M) for each in (en, zh)]
    placeholders = [sorted(name for name in names if name[0] != "work.unit") for names in named]
    headings = [re.findall(r"^(#+) ", each.body, re.MULTILINE) for each in (en, zh)]
    assert placeholders[0] == placeholders[1] and headings[0] == headings[1]
    of_records = language_labels("zh").keys()
    own = zh.labels.keys() - of_records
    assert own == en.labels.keys() - of_records
    for question in QUESTIONS.values():
        if question.template == template:
            assert {f"chapters.{name}.title" for name in question.chapters} <= own
            assert template == "template" or f"questions.{question.name}.introduction" in own


@pytest.mark.parametrize(
    "reach",
    [
        *("who.__class__", "who.__class__.__mro__[1].__subclasses__()"),
        *("say._sentences.environment", "say['_sentences'].environment", "say.sentences", "say.names"),
    ],
)
@pytest.mark.parametrize("filled", [fill, lambda loaded, values: substitute(loaded, loaded.body, values)])
def test_a_template_reaches_nothing_but_its_values(
    tmp_path: Path, reach: str, filled: Callable[[Template, dict[str, object]], str]
) -> None:
    with pytest.raises(TemplateError):
        filled(template(tmp_path, f"{{{{ {reach} }}}}"), {"who": "x"})


def test_sentences_are_unwrapped_and_tables_and_code_are_not() -> None:
    text = "one\n  two\n\n\n- item\n  goes on\n- next\n\n| a |\n| - |\n| b |\n\n```\nas\n  it is\n```\n"
    assert unwrapped(text) == "one two\n\n- item goes on\n- next\n\n| a |\n| - |\n| b |\n\n```\nas\n  it is\n```"
