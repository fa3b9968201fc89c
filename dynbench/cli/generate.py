"""`dynbench generate`: text from a saved language model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from dynbench.cli.options import Settings, common_options, config_options
from dynbench.cli.output import answered, print_line
from dynbench.errors import UsageError

if TYPE_CHECKING:
    from dynbench.engine.rank.saved import Writer

_log = logging.getLogger(__name__)


@click.command(
    epilog="\b\nExamples:\n  dynbench generate @latest --prompt 'Natalia sold' --length 60\n"
    "  dynbench generate FOLDER                     asks for prompts until the input ends"
)
@click.argument("source", metavar="RUN|FOLDER")
@click.option("--prompt", help="Text to go on with; asked for without.")
@click.option("--length", type=click.IntRange(min=1), default=100, show_default=True, help="Most tokens to write.")
@click.option("--temperature", type=click.FloatRange(min=0), default=1.0, show_default=True, help="0 draws nothing.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True,
              help="Share of probability that is drawn from.")  # fmt: skip
@click.option("--seed", "draw_seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the draws.")
@config_options("workload.tokenizer", "launch.device")
@common_options
def command(
    settings: Settings,
    source: str,
    prompt: str | None,
    length: int,
    temperature: float,
    top_p: float,
    draw_seed: int,
) -> None:
    """Go on with a prompt, as it is: a base model knows no dialogue, and no template is put around it."""
    from dynbench.engine.rank.saved import Writer, find_saved

    if prompt is None and settings.as_json:
        raise UsageError("--json without --prompt", "Name one: --prompt TEXT.")
    saved = find_saved(settings.store(), source)
    writer = Writer.of(saved.config(settings.overrides, settings.flags))
    if prompt is None:
        _converse(writer, length, temperature, top_p, draw_seed)
        return
    text, tokens = writer.go_on(prompt, length=length, temperature=temperature, top_p=top_p, seed=draw_seed)
    result = {"source": source, "prompt": prompt, "text": text, "tokens": tokens, "seed": draw_seed}
    if not answered(settings, "generate", result, text):
        print_line(prompt + text)


def _converse(writer: Writer, length: int, temperature: float, top_p: float, seed: int) -> None:
    """Ask for prompts until the input ends; every one is drawn with a seed of its own."""
    _log.info("the model goes on with each prompt as it is, without a template; end the input to stop")
    while True:
        try:
            prompt = click.prompt("prompt", prompt_suffix="> ", err=True)
        except click.Abort:
            return
        try:
            text, _ = writer.go_on(prompt, length=length, temperature=temperature, top_p=top_p, seed=seed)
        except UsageError as error:
            _log.error("%s %s", error.message, error.hint)
            continue
        print_line(prompt + text)
        seed += 1
