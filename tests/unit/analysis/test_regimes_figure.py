from __future__ import annotations

import json

import polars as pl
import pytest
from compared import ARMS, compared

from dynbench.analysis.figures import draw_figure, draw_figures
from dynbench.errors import RecordError
from dynbench.runs.store import RunStore


def cell(store: RunStore, batch: int, launcher: str, **found: object) -> dict[str, object]:
    """A comparison that has ended, and its line in the folder over several."""
    run = store.create("compare", "cell")
    candidate = compared(**{"overhead_share": 0.4, **found}).model_dump()
    summary = {"launcher": launcher, "world_size": 2, "global_batch": batch}
    content = {"runs": [{"id": "a", "summary": summary}], "arms": ARMS, "comparisons": [candidate]}
    (run.path / "comparison.json").write_text(json.dumps(content))
    return {"settings": {"train.global_batch": batch}, "comparison": run.id}


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
def test_every_comparison_is_a_mark_and_unfinished_ones_are_left_out(store, tmp_path):
    together = store.create("compare", "regimes")
    unfinished = {"settings": {}, "comparison": store.create("compare", "cell").id}
    cells = [
        cell(store, 8, "torchrun", speedup=1.02, overhead_share=0.8, predicted_speedup=1.05),
        cell(store, 256, "virtual", ci95=None),
        unfinished,
    ]
    (together.path / "cells.json").write_text(json.dumps({"cells": cells}))
    png, csv = draw_figures("cells", together, tmp_path)
    table = pl.read_csv(csv)
    assert png.stat().st_size > 10_000
    assert table["cell"].to_list() == ["train.global_batch=8", "train.global_batch=256"]
    assert table["launcher"].to_list() == ["torchrun", "virtual"]
    assert table["overhead_share"].to_list() == [0.8, 0.4]
    assert table["predicted_speedup"].to_list() == [1.05, None]
    drawing = draw_figure("cells", "regimes", together)
    assert drawing is not None
    assert [text.get_text() for text in drawing.figure.axes[0].texts] == ["G=2, B=8", "G=2, B=256"]


def test_nothing_is_drawn_before_a_comparison_has_ended(store, tmp_path):
    together = store.create("compare", "regimes")
    (together.path / "cells.json").write_text('{"cells": []}')
    assert draw_figures("cells", together, tmp_path) == []
    (together.path / "cells.json").write_text("{")
    with pytest.raises(RecordError, match=r"cells\.json"):
        draw_figures("cells", together, tmp_path)
