import ast
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import polars as pl
import pytest
from matplotlib.image import imread
from matplotlib.lines import Line2D

import dynbench.analysis.figures as registry
from dynbench.analysis.arms import seconds_per_unit
from dynbench.analysis.figures import FIGURES, charts, draw_figures, timeline
from dynbench.analysis.figures.charts import GREY, looks
from dynbench.analysis.figures.steps import smoothing_window
from dynbench.analysis.figures.timeline import typical_step
from dynbench.analysis.figures.views import ArmView, caption
from dynbench.analysis.merge import PARQUET, merge_run


@pytest.fixture
def view(make_run):
    def make(*policies, launches=1, **fields):
        return [
            ArmView(policy, tuple(merge_run(make_run(policy, **fields)) for _ in range(launches)))
            for policy in policies
        ]

    return make


def figure_modules():
    return list(Path(registry.__file__).parent.glob("*.py"))


def test_one_module_chooses_a_backend_and_nothing_uses_pyplot():
    for path in figure_modules():
        tree = ast.parse(path.read_text())
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any("pyplot" in name for name in imported), path.name
        assert ("matplotlib.use" in path.read_text()) == (path.name == "charts.py")
    assert matplotlib.get_backend().lower() == "agg"


ASKED = ("epochs", "strategies", "loss_curves", "bucket_overhead", "comm_timeline", "compression")
"""What figures begin with that need more than two policies: epochs, strategies, kept calls, compressors."""
DRAWN = [name for name in FIGURES["train"] if not name.startswith(ASKED)]


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
def test_every_figure_comes_with_its_numbers(view, tmp_path):
    files = draw_figures("train", view("static") + view("partition", world_size=4), tmp_path)
    assert [path.name for path in files] == [f"{name}.{kind}" for name in DRAWN for kind in ("png", "csv")]
    for path in files:
        if path.suffix == ".png":
            image = imread(path)
            assert image.shape[1] >= 800
            assert image[..., :3].std() > 0.05
        else:
            table = pl.read_csv(path)
            assert table.height > 0
            assert set(table["arm"]) == {"static", "partition"}


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 40])
def test_any_number_of_ranks_is_drawn(view, tmp_path, world_size):
    files = draw_figures("train", view("partition", world_size=world_size, global_batch=80, steps=12), tmp_path)
    assert (tmp_path / "timeline.png") in files
    assert ((tmp_path / "rank_spread.png") in files) == (world_size > 1)
    ranks = pl.read_csv(tmp_path / "timeline.csv")["rank"]
    assert ranks.len() == world_size if world_size <= 24 else ranks.len() in (23, 24)


@pytest.mark.slow
def test_the_slowest_of_many_ranks_is_always_shown(view, tmp_path):
    (arm,) = view("partition", world_size=60, global_batch=120, steps=12)
    draw_figures("train", [arm], tmp_path)
    shown = pl.read_csv(tmp_path / "timeline.csv")
    every = arm.runs[0].rank_rows(int(shown["step"][0]))
    assert shown["compute_ms"].max() == pytest.approx(every["compute_ms"].max())


@pytest.mark.slow
def test_many_ranks_are_judged_by_all_of_them_and_not_by_those_shown(view):
    arms = view("static", "partition", world_size=60, global_batch=120, steps=12, noise=0.0)
    drawing = timeline.timeline(arms)
    texts = " ".join(" ".join(text.get_text().split()) for text in drawing.figure.texts)
    assert "All arms compute the same samples." in texts
    every = [arm.runs[0].rank_rows(typical_step(arms)) for arm in arms]
    for rows, axes in zip(every, drawing.figure.axes, strict=True):
        waiting = rows["wait_ms"].mean() / rows["step_time_max_ms"][0]
        assert f"{100 * waiting:.0f} % of the ranks' time is waiting" in axes.get_title()
    step_ms = every[0]["step_time_max_ms"][0]
    drawn = drawing.table.filter(arm="static")["wait_ms"].mean() / step_ms
    assert f"{100 * drawn:.0f}" != f"{100 * every[0]['wait_ms'].mean() / step_ms:.0f}"


@pytest.mark.slow
def test_throughput_and_efficiency_over_ranks_are_those_of_the_comparison(view):
    one, four = view("static", world_size=1, launches=2) + view("partition", world_size=4, launches=2)
    arms = [ArmView("four", four.runs), ArmView("one", one.runs)]
    table = registry.draw_figure("train", "scaling", arms).table
    rates = [[1 / seconds_per_unit(run) for run in arm.runs] for arm in arms]
    speedup = (rates[0][0] * rates[0][1] / rates[1][0] / rates[1][1]) ** 0.5
    assert table["ranks"].to_list() == [4, 1]
    assert table["speedup"].to_list() == pytest.approx([speedup, 1])
    assert table["efficiency"].to_list() == pytest.approx([speedup / 4, 1])
    assert "n = 2 launches per arm, 1–4 ranks, " in caption(arms)
    assert "1 rank, " in caption(arms[1:])
    assert registry.draw_figure("train", "scaling", view("static", "partition")) is None


def test_a_timeline_of_runs_that_declare_other_columns(view):
    arms = view("static", "partition")
    path = arms[0].runs[0].run.path / PARQUET
    pl.read_parquet(path).with_columns(bytes_raw=pl.lit(1, pl.Int64)).write_parquet(path)
    path = arms[1].runs[0].run.path / PARQUET
    pl.read_parquet(path).with_columns(bytes_raw=pl.lit(1.0, pl.Float32)).write_parquet(path)
    assert timeline.timeline(arms) is not None


@pytest.mark.slow
def test_runs_without_a_measured_step_are_left_out(view, tmp_path):
    arms = view("static") + view("partition", status="failed", steps_written=4)
    draw_figures("train", arms, tmp_path)
    assert set(pl.read_csv(tmp_path / "step_time.csv")["arm"]) == {"static"}
    assert draw_figures("train", arms[1:], tmp_path / "none") == []


def test_the_typical_step_is_near_the_medians(view):
    arms = view("static", "partition", steps=100)
    step = typical_step(arms)
    first, second = (arm.runs[0].measured for arm in arms)
    chosen = first["step"].to_list().index(step)
    ratio = first["step_time_max_ms"] / second["step_time_max_ms"]
    assert 0.3 < (first["step_time_max_ms"] < first["step_time_max_ms"][chosen]).mean() < 0.7
    assert 0.3 < (ratio < ratio[chosen]).mean() < 0.7
    assert typical_step([]) is None


@pytest.mark.slow
def test_bars_of_the_breakdown_add_up_to_the_step(view, tmp_path):
    arms = view("static", "partition")
    draw_figures("train", arms, tmp_path, ["time_breakdown"])
    table = pl.read_csv(tmp_path / "time_breakdown.csv")
    for arm in arms:
        total = table.filter(pl.col("arm") == arm.label)["ms"].sum()
        assert total == pytest.approx(arm.steps["step_time_ms_mean"].mean(), rel=1e-4)


def test_launches_are_averaged_per_step(view):
    (arm,) = view("static", launches=3)
    expected = np.mean([run.measured["step_time_max_ms"].to_numpy() for run in arm.runs], axis=0)
    assert np.allclose(arm.steps["step_time_max_ms"], expected)
    assert arm.all_steps.height == 120


@pytest.mark.slow
def test_the_caption_names_runs_counts_and_what_is_left_out(view):
    text = caption(view("static", "partition", launches=2), "A note.")
    assert "n = 2 launches per arm, 2 ranks, 40 measured steps" in text
    assert "the first 10 steps (warm-up) are left out." in text
    assert text.endswith("A note.")


def test_the_caption_says_virtual(view):
    fields = {"overrides": ("launch.launcher=virtual", "launch.world_size=2")}
    assert "2 virtual ranks" in caption(view("static", **fields))


def test_lines_start_at_zero_and_smoothing_keeps_constants(view):
    drawing = registry.draw_figure("train", "step_time", view("static"))
    assert drawing.figure.axes[0].get_ylim()[0] == 0
    raw, smoothed = (drawing.table[name].to_numpy() for name in ("step_time_max_ms", "smoothed"))
    assert smoothed[[0, 20, -1]] == pytest.approx([raw[:3].mean(), raw[18:23].mean(), raw[-3:].mean()])


@pytest.mark.parametrize(("steps", "window"), [(10, 5), (2400, 201)])
def test_a_smoothed_value_covers_a_twelfth_of_the_steps(steps, window):
    assert smoothing_window([SimpleNamespace(steps=pl.DataFrame({"step": range(steps)}))]) == window


@pytest.mark.slow
@pytest.mark.parametrize("sentence", ["A long caption. ", "hf_batch_rebalance-1-mnud … hf_batch_rebalance-4-mnud; "])
@pytest.mark.parametrize("lines", [5, 14])
def test_caption_and_legend_keep_clear_of_the_panels(sentence, lines):
    names = ["a third one with a long name" if index == 2 else f"number {index}" for index in range(lines)]
    legend = [Line2D([], [], label=name) for name in names]
    with matplotlib.rc_context(charts.RC):
        figure, panels = charts.new_figure("Title", sentence * 40, panels=4, columns=2, legend=legend)
    figure.set_dpi(charts.RC["savefig.dpi"])
    for axes in panels:
        axes.set(xlabel="x (ms)", ylabel="y (ms)")
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in panels]
    others = [text.get_window_extent() for text in (*figure.texts, *figure.legends)]
    assert not any(box.overlaps(other) for box in boxes for other in others)
    assert not any(a.overlaps(b) for i, a in enumerate(others) for b in others[:i])
    assert all(other.x1 <= figure.bbox.x1 and other.x0 >= 0 for other in others)


def test_few_series_have_colours_and_of_many_only_the_important_ones():
    few = looks([f"{index}" for index in range(7)])
    assert len({look.color for look in few.values()}) == len({look.marker for look in few.values()}) == 7
    many = looks([f"{index}" for index in range(20)], ["0", "5", "9"])
    assert [name for name, look in many.items() if look.color != GREY] == ["0", "5", "9"]
    assert len({many[name].color for name in ("0", "5", "9")}) == 3


def test_analysis_does_not_load_torch():
    assert "dynbench.analysis.figures" in sys.modules
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.slow
def test_epochs_are_drawn_for_what_is_known_of_them(view):
    """No run was evaluated at the end of an epoch, so that only the training loss has a panel."""

    def for_epochs(run):
        config = run.facts.config
        config = config.model_copy(update={"train": config.train.model_copy(update={"epochs": 2})})
        return replace(run, facts=replace(run.facts, config=config))

    arms = [ArmView(arm.label, tuple(map(for_epochs, arm.runs))) for arm in view("static", "partition")]
    drawing = registry.draw_figure("train", "epochs", arms)
    assert [axes.get_ylabel() for axes in drawing.figure.axes] == ["training loss"]
    assert drawing.table["epoch"].to_list() == [1, 2, 1, 2]
    assert drawing.table["train_loss"].is_between(0.3, 1).all() and drawing.table["eval_loss"].null_count() == 4
    assert registry.draw_figure("train", "epochs", view("static")) is None


@pytest.mark.parametrize(
    ("value", "text"), [(12.345, "12.3"), (999.4, "999"), (999.6, "1,000"), (2021.4, "2,021"), (0.0123, "0.0123")]
)
def test_numbers_of_a_thousand_and_more_are_written_out(value, text):
    assert charts.digits(value) == text


@pytest.mark.slow
def test_memory_that_nobody_counted_has_no_panel(make_run):
    ms = {"comm_ms": 8.0, "comm_sum_ms": 9.0, "hidden_comm_ms": 2.0}
    sent = {"collectives": 3, "bytes_raw": 10, "bytes_wire": 10}
    arms = [
        ArmView(name, (merge_run(make_run("static", overrides=(f"sync.name={name}",), extra={**ms, **sent})),))
        for name in ("naive", "overlap")
    ]
    drawing = registry.draw_figure("train", "strategies", arms)
    assert len(drawing.figure.axes) == 3
    assert drawing.table["optimizer_mb"].null_count() == 2


@pytest.mark.slow
def test_samples_without_lengths_are_not_said_to_have_tokens(view):
    def told(overrides):
        (axes,) = registry.draw_figure("train", "timeline", view("static", overrides=overrides)).figure.axes
        return [label.get_text() for label in axes.get_yticklabels()]

    assert all(text.endswith(" tokens") for text in told(()))
    assert all(text.endswith(" samples") for text in told(("workload.name=image_classification",)))
