"""`dynbench eval`: the loss and perplexity, or accuracy, of a saved model."""

from __future__ import annotations

import click

from dynbench.cli.options import Settings, common_options, config_options
from dynbench.cli.output import answered, print_line

_KEYS = (
    *("workload.dataset", "workload.data_path", "workload.eval_path", "workload.text_column", "workload.tokenizer"),
    *("workload.max_length", "launch.device"),
)


@click.command(
    epilog="\b\nExamples:\n  dynbench eval @latest\n  dynbench eval runA --max-length 512\n"
    "  dynbench eval FOLDER --dataset jsonl --data-path texts.jsonl"
)
@click.argument("source", metavar="RUN|FOLDER")
@click.option("--batch-size", type=click.IntRange(min=1), default=64, show_default=True, help="Samples at a time.")
@click.option("--eval-samples", type=click.IntRange(min=1), help="Samples to draw. [all of a file named here]")
@config_options(*_KEYS)
@common_options
def command(settings: Settings, source: str, batch_size: int, eval_samples: int | None) -> None:
    """Evaluate a saved model on the samples that training evaluates: the evaluation file, or those held out.

    Of a run it is the best model that --save-model kept, on the run's own data unless others are named. A file that
    is named is evaluated whole, each sample cut as in the run.
    """
    from dynbench.engine.rank.saved import evaluate_saved, find_saved

    saved = find_saved(settings.store(), source)
    if eval_samples is not None:
        settings = settings.with_flag("train.eval_samples", eval_samples)
    found = evaluate_saved(saved.config(settings.overrides, settings.flags), batch_size)
    result = {"source": source, **found}
    metric = "perplexity" if "perplexity" in found else "accuracy"
    if not answered(settings, "eval", result, f"{found['loss']} {found[metric]}"):
        for key, value in result.items():
            print_line(f"{key.replace('_', ' '):20}{value:,.6g}" if isinstance(value, float) else f"{key:20}{value}")
