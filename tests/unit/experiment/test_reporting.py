"""Templates, reports from made-up comparisons, what they say of settings, and what a stranger wrote into records.

That is text in a report: no HTML, no link, no picture of a file of this machine. That every setting stands once, with
its value and why the program chose it, the accepted reports show.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from urllib.parse import unquote

import pytest
from languages import facts, said
from pixel import png
from probes import capacity_row
from unit.experiment.conftest import MakeComparison, Reported, page

from dynbench.analysis.questions import QUESTIONS
from dynbench.analysis.selection import RUNS_FILE
from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config, flatten
from dynbench.errors import RecordError, RunLookupError, UsageError
from dynbench.experiment.launch_plan import apart, plan_state
from dynbench.experiment.report_input import Member, ReportInput, find_report_input, mean_of, read_report_input
from dynbench.experiment.report_settings import cost_of, data_facts, memory_facts
from dynbench.experiment.reporting import render_report, to_html, write_report
from dynbench.plugins import DATASETS, WORKLOADS
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
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.probe_record import PROBE_FILE
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.table_text import Markdown, pipes, quoted

FRONT = "---\nwords:\n  not_measured: not measured\n  greeting: hello {{ who }}\n---\n"


def template(tmp_path: Path, body: str, front: str = FRONT) -> Template:
    path = tmp_path / "mine.md"
    path.write_text(front + body)
    return load_template("en", path)


FILLED = {
    "{{who}} and {{ words.greeting }}": "x and hello {{ who }}",
    "[{{ nothing }}] [{{ empty }}]": "[not measured] []",
    '{{ lines|table(1, "a", "b", "c", "d") }}': (
        "| a | b | d |\n| --- | ---: | ---: |\n| x | 1 \\| | y |\n| z | 2 |  |"
    ),
}


def test_what_a_template_is_filled_with(tmp_path: Path) -> None:
    values = {"who": "x", "nothing": None, "empty": "", "lines": [["x", "1 |", "", "y"], ["z", "2", "", ""]]}
    assert {body: fill(template(tmp_path, body), values).strip("\n") for body in FILLED} == FILLED


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


@pytest.mark.parametrize("template", sorted({"assignment", *(question.template for question in QUESTIONS.values())}))
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


def test_figures_are_linked_relative_to_the_report_found_again_after_a_move_and_left_out_where_they_are_gone(
    store: RunStore, reported: Reported, tmp_path: Path
) -> None:
    subject = reported({})

    inside = write_report(subject)
    outside = write_report(subject, output=tmp_path / "elsewhere" / "my report.md")

    assert inside == subject.run.path / "report.en.md"
    assert "](figures/timeline.png)" in inside.read_text()
    linked = re.findall(r"!\[[^]]*\]\(([^)]+)\)", outside.read_text())
    assert [Path(path).name for path in linked] == ["timeline.png", "unheard_of.png"]
    assert all((outside.parent / path).is_file() for path in linked)

    moved = RunStore(store.root.rename(tmp_path / "moved"))
    assert len(find_report_input(moved, None).figures) == 2


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_first_page_stands_before_the_contents_which_link_every_heading(reported: Reported, language: str) -> None:
    subject = reported({})
    whole, short = (page(subject, language, short=each) for each in (False, True))
    assert whole.startswith(short.rstrip()) and "timeline.png" in short
    html, first = (page(subject, language, "html", short=each) for each in (False, True))
    links = re.findall(r"\]\(#(.+)\)", whole)
    assert len(links) == len(set(links)) == len(re.findall("^###? ", whole, re.M)) - 1
    assert links == re.findall('<h[23] id="(.+?)"', html) == list(map(unquote, re.findall('href="#(.+?)"', html)))
    assert "<nav" in html and "<nav" not in first


def test_an_own_template_is_used(reported: Reported, tmp_path: Path) -> None:
    subject, own = reported({}), tmp_path / "own.md"
    own.write_text("# {{ best.name }}: {{ best.speedup }}\n")
    assert page(subject, template=own) == "# `partition`: 1.250\n"


def test_the_latest_comparison_is_taken_or_how_to_make_one_is_said(
    store: RunStore, make_comparison: MakeComparison
) -> None:
    bare = store.create("train", "static")
    with pytest.raises(RunLookupError) as caught:
        find_report_input(store, None)
    assert "dynbench compare" in caught.value.hint
    with pytest.raises(RecordError, match="neither a comparison nor"):
        find_report_input(store, bare.id)

    latest = make_comparison({})
    for order in ("unplanned", "abba"):
        store.create("train", "static")
        found = find_report_input(store, None)
        assert found.run == latest and facts(found)["method"]["order"] == order
        arms = ["static", "partition"]
        plan_state("demo", "static", apart(arms, "asked for"), 2, dict.fromkeys(arms, 0)).write(latest.path)


def test_a_broken_comparison_file_is_named(store: RunStore, make_comparison: MakeComparison) -> None:
    file = make_comparison({}).path / "comparison.json"
    for text in ("", "[]", "{", "{}", '{"runs": [{"id": "x"}], "arms": [{"name": "a", "runs": []}]}'):
        file.write_text(text)
        with pytest.raises(RecordError, match=r"comparison\.json"):
            find_report_input(store, None)


def test_partial_runs_are_left_out_of_means() -> None:
    whole, partial = Member("a", "a", {"x": 2.0}, None), Member("b", "b", {"x": 9.0, "partial": True}, None)
    assert mean_of([whole, partial], "x") == 2.0
    assert mean_of([partial], "x") == 9.0


def test_work_names_the_two_arms_and_says_what_the_hashes_say(reported: Reported) -> None:
    same = [({"level": level}, level) for level in ("step", "stream")]
    unlike = [({"verdict": "INCOMPARABLE", "level": level}, level) for level in ("step", "window")]
    other = ({"verdict": "INCOMPARABLE", "level": "stream"}, "different")
    for changes, work in (*same, *unlike, other, ({"aa": True}, "alike")):
        assert facts(reported(changes))["method"]["work"] == work


def test_trained_weights_are_held_against_each_other_where_they_were_kept(reported: Reported) -> None:
    changes = ({"candidate": "two", "weights_max_diff": 2.5e-7}, {"candidate": "two"})
    kept, none = (str(facts(reported(one, {"candidate": "three"}))["table.comparisons"]) for one in changes)
    assert "2.5e-07" in kept and kept.count("|") == none.count("|") + 4, "a column of two arms"


MATHEMATICS = {
    "*b_g*": '<em class="math">b<sub>g</sub></em>',
    "*L^2*": '<em class="math">L<sup>2</sup></em>',
    "*Σ_{i in S_g} f_i*": 'Σ<sub>i <span class="word">in</span> S<sub>g</sub></sub> f<sub>i</sub>',
    "*cap_g(L) < 3*": '<span class="word">cap</span><sub>g</sub>(L) &lt; 3',
    "*l_i +\nl_i^2*": '<em class="math">l<sub>i</sub> +\nl<sub>i</sub><sup>2</sup></em>',
    "*plain words*": "<em>plain words</em>",
    "*plain\nwords*": "<em>plain\nwords</em>",
    "a_b_c": "a_b_c",
}


@pytest.mark.parametrize("source", MATHEMATICS)
def test_mathematics_in_emphasis(source: str, tmp_path: Path) -> None:
    assert MATHEMATICS[source] in to_html(source, tmp_path, "en")


LABELLED = {
    "min  x_g\n     y": ["x<sub>g</sub>", "<span></span><span>y</span>"],
    "tokens       c(S)\nattention    c(S) + 1": ['<span><span class="word">', "<span>c(S)</span>"],
    "x_g  y\nc(S)  =  z": [],
}


def test_labels_of_a_formula_have_a_column_of_their_own(tmp_path: Path) -> None:
    for formula, cells in LABELLED.items():
        text = to_html(f"```formula\n{formula}\n```\n", tmp_path, "en").partition("<body>")[2]
        assert ('<div class="formula columns">' in text) == bool(cells)
        assert all(cell in text for cell in cells)


def test_a_page_is_self_contained_and_values_cannot_inject_markup(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(b"\x89PNG")

    page = to_html("# T <b>\n\n![x](a%20b.png)\n<script>alert(1)</script> <img src=x onerror=y>\n", tmp_path, "zh")

    for text in ('src="data:image/png;base64,iVBORw=="', '<html lang="zh-CN">', "<title>T &lt;b&gt;</title>"):
        assert text in page
    assert not re.search(r'<script|<img src=x|(?:src|href)="(?!data:)', page)
    with pytest.raises(TemplateError, match=r"gone.png: no such file"):
        to_html("![x](gone.png)", tmp_path, "en")


def test_p_values_of_a_pooled_spread_are_not_shown(reported: Reported) -> None:
    """Earlier versions kept them: they tell equal arms apart where one arm spreads more."""
    heading = load_template("en").labels["headings.told_apart"]
    for spread in ("arms", "pooled"):
        pairs = [{"candidate": name, "p_holm": 0.02, "spread": spread} for name in ("partition", "other")]
        subject = reported({}, {"candidate": "other"}, pairs=pairs)
        assert (f"| {heading} |" in page(subject)) == (spread == "arms")


def test_an_unknown_question_of_a_later_version_is_told(reported: Reported) -> None:
    with pytest.raises(UsageError, match="'cooling': no such question"):
        reported({}, question="cooling")


EVIL = "x<script>alert(1)</script> ](javascript:alert(1)) ![p](/etc/passwd) | `b` \x1b[31m\n\n[r]: /etc/passwd\n# head"


def test_markup_is_shown_as_it_stands() -> None:
    for text in ("a < b <= c", "[1.2, 1.3] of [0, 1]"):
        assert quoted(text) == text
    assert quoted("<b>&amp; [x](y) [x][y] [x]: y") == r"&lt;b>&amp; [x\](y) [x\][y] [x\]: y"
    assert quoted("\x1b[31m a\n\n# b") == r"\x1b[31m a # b"


def test_quoting_twice_is_quoting_once() -> None:
    for text in ("[x](y)", r"[x\](y)", r"[x\\](y)", "<b>", "a\n\n# b", EVIL):
        assert quoted(quoted(text)) == quoted(text)
        assert len(re.findall(r"(\\*)\]\(", quoted(text))[0]) % 2 == 1 if "](" in text else True


def test_what_templates_and_tables_put_out_is_quoted_once_and_markdown_is_not() -> None:
    template = load_template("en")
    values = {"evil": "<b>[x](y)", "arms": [{"name": "<i>"}], "table": Markdown("[x](y)\n\n<b>")}
    assert substitute(template, "{{ evil }} {{ arms[0].name|code }}", values) == r"&lt;b>[x\](y) `&lt;i>`"
    assert substitute(template, "{% set more %}{{ evil }}{% endset %}{{ more }}", values) == r"&lt;b>[x\](y)"
    assert substitute(template, "{{ table }}", values) == "[x](y)\n\n<b>"
    assert pipes([["<b>|[x](y)"]]) == r"| &lt;b>\|[x\](y) |"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_comparison_full_of_markup(store: RunStore, make_comparison: MakeComparison, language: str) -> None:
    folder = make_comparison(
        {"candidate": "evil", "reason": EVIL, "left_out": [EVIL]},
        checks=[{"severity": "warn", "seen": EVIL, "limit": EVIL, "hint": EVIL, "id": "noise"}],
        summary={"policy": EVIL, "dataset": EVIL},
    )
    path = folder.path / "comparison.json"
    record = json.loads(path.read_text())
    record["arms"][1]["name"] = record["comparisons"][0]["candidate"] = EVIL
    path.write_text(json.dumps(record))
    kept = {"status": EVIL, "config": {"workload.dataset": EVIL}, "env": {"host": EVIL, "cpu_model": EVIL}}
    runs = {item["id"]: kept for item in record["runs"]}
    (folder.path / "runs.json").write_text(json.dumps({"runs": runs, "probes": {}}))
    subject = read_report_input(store, folder)

    markdown, html = (page(subject, language, form) for form in ("md", "html"))

    assert "alert(1)" in markdown, "it is said"
    assert not re.search(r"(?m)<script|(?<!\\)\]\((?:javascript|/etc)|\x1b|^# head|^\[r\]:", markdown)
    assert "<script" not in html and "\x1b" not in html
    assert not re.search(r'(?:href|src)="(?!data:image/|#|https://doi|https://arxiv|data:,)[^"]*"', html)


def test_only_pictures_are_put_into_a_page(store: RunStore, make_comparison: MakeComparison) -> None:
    folder = make_comparison({})
    (folder.figures_dir / "timeline.png").write_text("root:x:0:0")
    with pytest.raises(TemplateError, match="is no picture"):
        page(read_report_input(store, folder), form="html")


def test_pictures_that_lie_elsewhere_are_left_out(
    store: RunStore, make_comparison: MakeComparison, tmp_path: Path
) -> None:
    mine = tmp_path / "holiday.png"
    mine.write_bytes(png())
    folder = make_comparison({}, figures=[str(mine)])
    assert read_report_input(store, folder).figures == []


@pytest.mark.parametrize("name", ["a (1) <b>", "x](y)", "50%20off"])
def test_figures_of_a_folder_of_any_name_are_found(store: RunStore, make_comparison: MakeComparison, name: str) -> None:
    folder = make_comparison({})
    moved = folder.path.rename(store.root / name)
    text = render_report(read_report_input(store, Run(moved)), "en", "html", store.root.parent)
    assert text.count('src="data:image/png') == 2


Guarded = Callable[..., ReportInput]


def data_said(subject: ReportInput, env: Mapping[str, object], **config: object) -> str:
    """`{{ say.data }}` with other records."""
    known = {**(subject.first.config or {}), **{f"workload.{key}": value for key, value in config.items()}}
    member = replace(subject.first, config=known, env=env)
    told = data_facts(replace(subject, arms={subject.baseline: [member]}))
    return substitute(load_template("en"), "{{ say.data }}", told)


def test_the_data_is_that_of_the_run(reported: Reported) -> None:
    """Every data set is named, and its file."""
    subject = reported({})
    texts = {}
    for dataset, entry in DATASETS.items():
        fits = (name for name, it in WORKLOADS.items() if it.samples in entry.samples and it.classes <= entry.classes)
        path = "/texts/my.file" if entry.of_files else None
        texts[dataset] = data_said(subject, {}, dataset=dataset, name=next(fits), data_path=path)
        assert ("`my.file`" in texts[dataset]) == entry.of_files
    assert "`unheard_of`" in data_said(subject, {}, dataset="unheard_of")
    assert len({*texts.values()}) == len(texts)


SAID_OF = {
    "`m`": ("weights=pretrained model=m", "size=model model=m", "name=causal_lm size=model model=m"),
    "distilbert-base-uncased [8]": ("size=base",),
    "DistilBERT [8]": ("size=auto",),
    "gpt2": ("name=causal_lm size=small",),
    "`my.py:Own`": ("name=my.py:Own code_digest=abc",),
}
"""A model's name, and the settings under which it, and no other, is said."""


@pytest.mark.parametrize("named", SAID_OF)
def test_the_model_is_that_of_the_run(reported: Reported, named: str) -> None:
    env = {"data": {"model": {"architecture": "gpt2", "layers": 17, "dim": 768}}}
    for given in SAID_OF[named]:
        config = dict(setting.split("=") for setting in given.split())
        text = data_said(reported({}), env, **{"weights": "random", **config})
        assert [name for name in SAID_OF if name in text] == [named]


def test_what_is_gone_is_called_missing(store: RunStore, make_comparison: MakeComparison) -> None:
    folder = make_comparison({})
    for run in store.list():
        if run != folder:
            shutil.rmtree(run.path)
    labels = load_template("en").labels

    subject = read_report_input(store, folder)
    text = page(subject)
    assert not data_facts(subject)["data"]["known"] and said(subject, "data") in text
    assert f"| {labels['settings.cpu']} | {labels['words.missing']} |" in text
    assert said(subject, "arms") in text


BOTH = (0, 1)
ALL_FAILED = dict.fromkeys((32, 64, 256), BOTH)


@pytest.fixture
def guarded(store: RunStore, reported: Reported) -> Guarded:
    """Two arms, the second with this capacity; `probed` has two ranks, `failed` says where a larger batch failed."""

    def make(capacity: str, failed: Mapping[int, Sequence[int]] = ALL_FAILED, soak: object = None) -> ReportInput:
        rows = [
            capacity_row(rank, length, most - rank, most + 100 if rank in failed.get(length, ()) else None)
            for rank, (length, most) in product(BOTH, {32: 512, 64: 300, 256: 43}.items())
        ]
        probe = store.create("probe", "probe")
        write_json(probe.path / PROBE_FILE, {"memory_limit_mb": 1000.0, "capacity": rows, "soak": soak})
        write_text(probe.config_file, dump_config(load_config(None, ["probe.margin=0.2"])))
        chosen = probe.id if capacity == "probed" else capacity
        return reported({}, settings={"partition": ["schedule.mode=dynamic", f"schedule.capacity={chosen}"]})

    return make


def test_how_memory_was_guarded_is_told_as_it_was(guarded: Guarded) -> None:
    for capacity, kind in {"12": "given", "12,9": "given", "probed": "probe", "gone": "lost"}.items():
        subject = guarded(capacity)
        found = [(guard["arms"], guard["kind"]) for guard in memory_facts(subject)["guards"]]
        assert found == [(["static"], "none"), (["partition"], kind)]
        assert len({said(subject, "memory_safety", language) for language in LANGUAGES}) == 2


def test_a_soak_is_told_with_its_outcome_and_the_margin_with_its_limit(guarded: Guarded) -> None:
    for soak in (None, {"steps": 50, "ok": True, "shrunk": 1}, {"steps": 50, "ok": False}):
        found = memory_facts(guarded("probed", soak=soak))["guards"][-1]
        assert found["soak"] == (soak and {"shrunk": None, **soak})
        assert (found["margin"], found["limit_mb"]) == (0.2, 1000)


def test_what_was_tested_without_failure_is_no_capacity(guarded: Guarded) -> None:
    """Of each the shortest length with the samples there, and the longest, by where a larger batch failed."""
    for failed, found, tested in (
        ({}, [], [32, 511, 256, 42]),
        ({64: (0,), 256: BOTH}, [64, 300, 256, 42], [32, 511, 32, 511]),
        (ALL_FAILED, [32, 511, 256, 42], []),
    ):
        subject = guarded("probed", failed)
        guard = memory_facts(subject)["guards"][-1]
        assert [[*(guard[kind] or {}).values()] for kind in ("found", "tested")] == [found, tested]
        text = said(subject, "memory_safety")
        assert ("20.0" in text) == bool(found), "a margin only where something failed"
        counts = re.findall(r"\b\d+\b", text)
        assert all(counts.count(str(count)) == 1 for count in {*found[1::2], *tested[1::2]}), "told once"


def test_options_of_plugins_that_are_not_loaded_are_told(store: RunStore, make_comparison: MakeComparison) -> None:
    folder = make_comparison({})
    trained = [run for run in store.list() if run != folder]
    kept = {}
    for run, turns in zip(trained, (3, 5), strict=True):
        config = flatten(run.config()) | {"schedule.turns": turns, "sync.late": True}
        kept[run.id] = {"status": "completed", "config": config}
    write_json(folder.path / RUNS_FILE, {"runs": kept})

    text = page(read_report_input(store, folder))

    assert "(A/A)" not in text
    assert {"| `schedule.turns` | 3 | 5 |", "| `schedule.turns` | 5 | 3 |"} & set(text.splitlines())
    assert "| `sync.late` | true |" in text


def test_coefficients_that_were_given_are_told_of_rows_as_of_padded_batches(reported: Reported) -> None:
    """Those of probes stand in accepted reports."""
    given = ("schedule.cost_type=measured", "schedule.cost_coefficients=2.0,0.5,0.01")
    subject = reported({}, settings={"static": given, "partition": ["workload.layout=packed", *given]})
    padded, packed = (cost_of(members[0], subject) for members in subject.arms.values())
    assert padded == "`measured`: *2 + 0.5·n·L + 0.01·n·L^2* ms"
    assert packed == "`measured`: *2 + 0.5·Σ_i l_i + 0.01·Σ_i l_i^2* ms"
