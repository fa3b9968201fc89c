"""A measure is declared once: summary, tables, comparisons, files and the page of fields have it from there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dynbench.analysis.measures import MEASURES, METRICS
from dynbench.analysis.results_csv import COLUMNS
from dynbench.runs.run import Run

ADDING = '''\
"""As if the class stood in measures.py."""
import json, sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from dynbench.analysis.measure import measure, shown


class Added:
    """Of tomorrow."""

    twice_ms: float | None = measure(
        lambda at: 2 * at.of("step_time_ms.mean"),
        shown("step time", "twice", "step time, twice", "ms", of="step"),
        column="twice_ms",
        over_launches=True,
    )
    """Twice the mean step time."""


spec = find_spec("dynbench.analysis.measures")
module = sys.modules[spec.name] = module_from_spec(spec)
module.Added = Added
source = Path(spec.origin).read_text(encoding="utf-8")
declared = source.replace("Quality, Explained)", "Quality, Explained, Added)")
assert declared != source
exec(compile(declared, spec.origin, "exec"), vars(module))

from dynbench.analysis.measures import FAMILIES, improvements
from dynbench.analysis.results_csv import over_launches
from dynbench.analysis.results_csv import results_csv
from dynbench.analysis.summary import summarise
from dynbench.fields.documents import page
from dynbench.runs.run import Run

runs = [Run(Path(folder)) for folder in sys.argv[1:]]
summaries = [summarise(run) for run in runs]
print(json.dumps({
    "summary": summaries[0],
    "table": (runs[0].path / "summary.md").read_text(encoding="utf-8"),
    "csv": results_csv(summaries).splitlines()[0],
    "heading": FAMILIES["step time"]["twice_ms"],
    "over_launches": over_launches(summaries)["twice_ms"].launches,
    "gain": improvements(summaries[:1], summaries[1:])["twice_ms"],
    "page": [line for line in page().splitlines() if "twice_ms" in line],
}))
'''


@pytest.mark.slow
def test_one_declaration_is_seen_everywhere(make_run: Callable[..., Run], tmp_path: Path) -> None:
    folders = [str(make_run(policy).path) for policy in ("static", "partition")]
    (tmp_path / "added.py").write_text(ADDING, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "added.py"), *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout)
    twice = 2 * found["summary"]["step_time_ms"]["mean"]
    assert found["summary"]["twice_ms"] == found["summary"]["record"]["twice_ms"] == twice
    assert "step time, twice" in found["table"] and found["heading"] == "twice"
    assert found["csv"].split(",")[-1] == "twice_ms" and found["over_launches"] == 2
    assert found["gain"] > 0
    assert len(found["page"]) == 2 and all("Twice the mean step time." in line for line in found["page"])


def test_what_is_declared_is_declared_once() -> None:
    for declared in (MEASURES, METRICS, COLUMNS):
        keys = [each.key for each in declared]
        assert len(keys) == len(set(keys))
    assert not any("." in each.needs for each in MEASURES)
    assert [metric.key for metric in METRICS if not metric.title or not metric.heading] == []
