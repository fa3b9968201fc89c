"""`dynbench train`: one run, static or dynamic, with every step of every rank measured."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

import click

from dynbench.cli.common import Settings, next_command, print_lines, print_table, setting_words, show_warnings
from dynbench.cli.options import Option, command, output_option
from dynbench.errors import RecordError
from dynbench.units import format_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynbench.config.schema import Config
    from dynbench.engine.launching.run_launch import LaunchPlan
    from dynbench.experiment.training import TrainingResult
    from dynbench.runs.run import Run
    from dynbench.runs.store import RunStore

_OPTIONS = (
    output_option(["--save-model"], is_flag=True, help="Keep the best and the last model."),
    output_option(
        ["--tensorboard"], rare=True, is_flag=True, help="Write scalars too; `dynbench tensorboard` shows them."
    ),
    output_option(["--no-figures"], rare=True, is_flag=True, help="Leave the figures out."),
    Option(
        ["--exposed"],
        group="Training",
        rare=True,
        is_flag=True,
        help="Train in turns with the same without communication, which tells what that costs.",
    ),
)


@command(
    named=True,
    options=_OPTIONS,
    config=("workload", "schedule", "sync", "compress", "train", "launch", "probe.run"),
    epilog="\b\nExamples:\n  dynbench train --mode static --name runA\n  dynbench train --mode dynamic --name runB\n"
    "  dynbench train --mode dynamic --dataset tsv --data-path train.tsv --tokenizer vocab.txt --nproc 2\n"
    "  torchrun --nproc-per-node 2 -m dynbench train --mode static",
)
@click.option("--dry-run", is_flag=True, help="Print what would be run; run nothing.")
def train(settings: Settings, dry_run: bool, no_figures: bool, **switches: bool) -> None:
    """Train a model on several ranks and record where every step's time goes."""
    settings = settings.with_flags({f"train.{key}": True for key, given in switches.items() if given})
    config, store, naming = settings.config(paths=True), settings.store(), settings.naming
    if dry_run:
        from dynbench.engine.launching.run_launch import plan_launch

        if config.train.exposed:
            from dynbench.experiment.training import exposed_turns, with_null_arms

            exposed_turns(config, store)
            _, null = with_null_arms([("with", config, naming)])
            plan_launch(null.config, store, **null.naming)  # what cannot work of the one beside it
        _show_plan(plan_launch(config, store, asked=config, **naming), settings)
        return

    from dynbench.cli.console import TRAINING, display

    with display(settings.shows_progress, "starting ranks", TRAINING) as shown:
        from dynbench.experiment.training import run_training  # seconds, of which the display tells

        on_progress = shown.on_training if settings.shows_progress else None
        result = run_training(config, store, on_progress=on_progress, figures=not no_figures, **naming)
    if result is not None:
        _show_result(result, store, settings)


def _show_plan(plan: LaunchPlan, settings: Settings) -> None:
    from dynbench.config.schema import dump_config

    show_warnings(plan.warnings)
    config, decisions = plan.resolved.config, plan.resolved.decisions
    facts = {
        "dry_run": True,
        "config": config.model_dump(mode="json"),
        "decisions": decisions,
        "torchrun": list(plan.command),
        "environment": plan.environment,
        "run_path": plan.run_path,
        "warnings": plan.warnings,
    }
    variables = " ".join(f"{key}={value}" for key, value in plan.environment.items())
    lines = [
        dump_config(config).rstrip(),
        *(f"# {key}: {it['value']} ({it['reason']})" for key, it in decisions.items()),
        "",
        f"torchrun  {variables} {shlex.join(plan.command)}",
        f"run       {plan.run_path}",
    ]
    if not settings.printed(facts, lines):
        print_lines(*lines)


LEAST_GAIN = 1.05
"""The least gain worth stating, times as fast."""


def _show_result(result: TrainingResult, store: RunStore, settings: Settings) -> None:
    run, summary, null = result.run, result.summary, result.null
    figures = [path for path in result.figures if path.suffix == ".png"]
    facts: dict[str, object] = {"run": run.reference, "summary": summary, "figures": figures}
    if null is not None:
        facts["silent"] = {"id": null.run.id, "name": null.run.name, "path": null.run.path}
    if settings.printed(facts, str(run.path)):
        return
    if summary is not None:
        if settings.verbosity > 0:
            _show_metrics(run, {each.run.label: each.summary for each in (result, null) if each and each.summary})
        warnings = len(run.record().warnings)
        print_lines(
            f"trained   {_trained(run, summary)}",
            f"to gain   {_to_gain(run, summary, store)}",
            f"loss      {_loss(summary)}",
            f"warnings  {f'{warnings}, above and in run.json' if warnings else 'none'}",
        )
    beside = "" if null is None else f", beside it {null.run.path} without communication"
    print_lines(f"where     {run.path}{beside}; next: {_next(run, store)}")


def _show_metrics(run: Run, summaries: Mapping[str, Mapping[str, object]]) -> None:
    from dynbench.analysis.run_facts import read_data
    from dynbench.analysis.summary import LEGEND
    from dynbench.analysis.tables import metric_tables

    for table in metric_tables(summaries, {}):
        print_table(table.columns, table.rows)
    print_lines(f"\n{LEGEND}\n")
    about = read_data(run.env(), run.config().workload.max_length).lines()
    print_lines(*(f"{word:<10}{sentence}" for word, sentence in about))


def _trained(run: Run, summary: Mapping[str, object]) -> str:
    """What was trained, by whom, and what its numbers rest on."""
    from dynbench.analysis.measure import lookup
    from dynbench.config.ranks import ranks_of

    config = run.config()
    launch = config.launch
    rests_on = {
        "virtual, one device": launch.launcher == "virtual",
        f"emulated link of {launch.link_gbps} Gb/s": launch.link_gbps is not None,
        "oversubscribed, more computing threads than cores": summary["oversubscribed"],
    }
    ranks = str(ranks_of(config, int(lookup(summary, "world_size") or 1)))
    notes = "; ".join(note for note, holds in rests_on.items() if holds)
    time_ms = lookup(summary, "step_time_ms.mean")
    return (
        f"{config.workload.name} on {config.workload.dataset}, {config.plan_name} on {ranks}"
        f"{f' ({notes})' if notes else ''}: {summary['steps']} steps"
        f"{'' if time_ms is None else f' of {format_ms(time_ms)} on average'}"
    )


def _to_gain(run: Run, summary: Mapping[str, object], store: RunStore) -> str:
    """Waiting and padding, and what a step without them would be as fast as; of a static run the comparison to try."""
    from dynbench.analysis.measure import lookup
    from dynbench.config.part_rules import has_lengths

    config = run.config()
    wait = lookup(summary, "wait_fraction")
    padding = lookup(summary, "padding_ratio") if has_lengths(config) else None
    shares = [] if wait is None else [f"ranks wait {100 * wait:.1f} % of the time"]
    shares += [f"{100 * (1 - 1 / padding):.0f} % of token positions are padding"] if padding else []
    text = ", ".join(shares) or "not known"
    if _diverged(summary):
        return text
    lost = [lookup(summary, f"waste.{part}") for part in ("waiting", "padding")]
    gain = 1 / (1 - sum(share for share in lost if share is not None)) if None not in lost else 1.0
    if gain < LEAST_GAIN:
        return text
    text += f": up to {gain:.1f} times as fast"
    if config.schedule.mode != "static" or not has_lengths(config):
        return text
    arms = ("--arm", "static:mode=static", "--arm", "partition:mode=dynamic,policy=partition", "--launches", "4")
    return f"{text}; try `{next_command('compare', '-c', str(run.config_file), *arms, root=store.root)}`"


def _loss(summary: Mapping[str, object]) -> str:
    from dynbench.analysis.measure import lookup

    shown = {
        "loss.first": "training {:.3f} at first",
        "loss.last": "{:.3f} at last",
        "eval.loss": "evaluation {:.3f}",
        "eval.perplexity": "perplexity {:.4g}",
        "eval.accuracy": "accuracy {:.3f}",
    }
    found = {text: lookup(summary, key) for key, text in shown.items()}
    known = [text.format(value) for text, value in found.items() if value is not None]
    if _diverged(summary):
        known.append("diverged, not a finite number; try a lower --learning-rate")
    return ", ".join(known) or "none: no model was trained"


def _diverged(summary: Mapping[str, object]) -> bool:
    """Whether the last loss is not finite; times of such a run say nothing about training."""
    from dynbench.analysis.measure import lookup

    last = lookup(summary, "loss.last")
    return last is not None and not math.isfinite(last)


def _next(run: Run, store: RunStore) -> str:
    """What reads what the run left: the model, the scalars, else its measurements."""
    train = run.config().train
    reader = "eval" if train.save_model else "tensorboard" if train.tensorboard else ""
    return next_command(reader, run.label, root=store.root) if reader else analysis_command(run, store)


def analysis_command(run: Run, store: RunStore) -> str:
    """The analysis of a run as it was configured, against the latest run that has other scheduling only, or alone."""
    from dynbench.config.schema import Analysis

    config = run.config()
    labels = [each.label for each in _compared(run, config, store)]
    settings = [] if config.analysis == Analysis() else setting_words("analyze", run, {})
    return next_command("analyze", *labels, *settings, root=store.root)


def _compared(run: Run, config: Config, store: RunStore) -> tuple[Run, ...]:
    """The run and the one to compare it with, static first."""
    from dynbench.config.schema import differences

    for other, record in reversed(store.entries()):
        if record.command != "train" or record.status != "completed" or other.id == run.id:
            continue
        try:
            differing = differences(config, other.config())
        except RecordError:  # a broken run of another day is no reason to fail this one
            continue
        if "schedule.mode" in differing and all(key.startswith("schedule.") for key in differing):
            return (run, other) if config.schedule.mode == "static" else (other, run)
    return (run,)
