"""Markdown to a page: mathematics, images, and nothing that could run or load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dynbench.experiment.html_page import to_html
from dynbench.report import TemplateError


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("*b_g*", '<em class="math">b<sub>g</sub></em>'),
        ("*L^2*", '<em class="math">L<sup>2</sup></em>'),
        ("*Σ_{i in S_g} f_i*", 'Σ<sub>i <span class="word">in</span> S<sub>g</sub></sub> f<sub>i</sub>'),
        ("*cap_g(L) < 3*", '<span class="word">cap</span><sub>g</sub>(L) &lt; 3'),
        ("*l_i +\nl_i^2*", '<em class="math">l<sub>i</sub> +\nl<sub>i</sub><sup>2</sup></em>'),
        ("*plain words*", "<em>plain words</em>"),
        ("*plain\nwords*", "<em>plain\nwords</em>"),
        ("a_b_c", "a_b_c"),
    ],
)
def test_mathematics_in_emphasis(source: str, expected: str, tmp_path: Path) -> None:
    assert expected in to_html(source, tmp_path, "en")


def test_an_indented_formula_has_a_column_of_labels(tmp_path: Path) -> None:
    page = to_html("```formula\nminimise  x_g\n          y\n```\n", tmp_path, "en")

    assert '<div class="formula columns">' in page
    assert "x<sub>g</sub>" in page
    assert "<span></span><span>y</span>" in page


def test_lines_that_all_begin_with_a_label_have_a_column_of_labels(tmp_path: Path) -> None:
    page = to_html("```formula\ntokens       c(S)\nattention    c(S) + 1\n```\n", tmp_path, "en")
    assert page.count('<span><span class="word">') == 2 and "<span>c(S)</span>" in page
    assert "columns" not in to_html("```formula\nx_g  y\nc(S)  =  z\n```\n", tmp_path, "en").partition("<body>")[2]


def test_images_are_inlined_and_missing_ones_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(b"\x89PNG")

    page = to_html("![x](a%20b.png)", tmp_path, "en")

    assert 'src="data:image/png;base64,iVBORw=="' in page
    with pytest.raises(TemplateError, match=r"gone.png: no such file"):
        to_html("![x](gone.png)", tmp_path, "en")


def test_the_page_is_self_contained_and_values_cannot_inject_markup(tmp_path: Path) -> None:
    page = to_html("# T <b>\n\n<script>alert(1)</script> <img src=x onerror=y>\n", tmp_path, "zh")

    assert "<script" not in page
    assert "<img src=x" not in page
    assert '<html lang="zh-CN">' in page
    assert "<title>T &lt;b&gt;</title>" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)
