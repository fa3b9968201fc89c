"""`dynbench`: finds the command, runs it, and turns what went wrong into one line and an exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, TextIO

import click

from dynbench import __version__
from dynbench.errors import (
    EXIT_OK,
    EXIT_USAGE,
    BugError,
    DynbenchError,
    Interrupted,
    UsageError,
    did_you_mean,
    nearest,
    user_error,
)
from dynbench.signals import handle, terminate

COMMANDS: dict[str, tuple[str, str]] = {
    "probe": ("probe", "What fits in memory, and what a step costs."),
    "train": ("train", "Train, static or dynamic, and measure every step of every rank."),
    "solve": ("solve", "Plan offline: policies, exact against greedy, bounds; no torch."),
    "analyze": ("analyze", "Summary, checks and figures of a run; the comparison of several."),
    "report": ("report", "Fill the report template from a run or comparison."),
    "compare": ("compare", "A whole experiment: launches in a balanced order, analysis, report."),
    "bench": ("bench", "Measure one part alone: collectives, attention, a model's step."),
    "eval": ("trained:evaluate", "Loss and perplexity, or accuracy, of a saved model."),
    "generate": ("trained", "Text from a saved language model."),
    "tensorboard": ("trained", "TensorBoard on the scalars that `train --tensorboard` wrote."),
    "data": ("data", "Lengths of a data set, to share them without its text; articles."),
    "runs": ("runs", "List, show, export and remove runs."),
    "recipes": ("shipped", "List, show and copy the recipes of `compare`."),
    "sync": ("plugins", "List the synchronisation strategies; check them against one process."),
    "compress": ("plugins", "List the compressors of gradients: what they send, and how."),
    "plugins": ("plugins", "What can be chosen, and with which options."),
    "guide": ("shipped", "The guides: verdicts, policies, synchronisation, own loops and more."),
    "doctor": ("doctor", "What works on this machine, what would go wrong, what a recipe needs."),
    "completion": ("shipped", "The script that completes commands in bash, zsh or fish."),
}
"""Command to its place and short help: `--help` reads this table and imports no command.

The place is a module of `dynbench.cli` whose attribute of this name it is, or `module:attribute`.
"""

GROUPS = ("data", "runs", "recipes", "sync", "compress")
"""Commands with commands of their own."""

EPILOG = """\b
Exit codes:
  0    done
  1    a bug in dynbench
  2    usage or configuration
  3    a worker failed
  4    out of memory, or nothing fits
  5    runs not comparable
  6    checks failed under --strict, or a condition of --fail-on is met
  130  interrupted (143 when terminated, 141 when the reader of stdout went away)
"""


def load_command(name: str) -> click.Command:
    """A command of the table, imported now."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command: click.Command = getattr(import_module(f"dynbench.cli.{module}"), attribute or name)
    return command


class LazyGroup(click.Group):
    """A group whose commands are imported when they run, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command named first, or an error with the nearest spelling."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            ctx.fail(f"No such command '{name}'. {did_you_mean(name, COMMANDS)}".rstrip())
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a closed pipe is an interruption, not a system error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise user_error(error) from error


@click.group(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
)
@click.version_option(__version__, prog_name="dynbench")
def group() -> None:
    """How much of data-parallel training is spent waiting for the slowest rank, and what comes back.

    Start with `dynbench train --mode static`. `train`, `probe`, `solve` and `compare` need no arguments, as their
    default data are embedded.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: what stands behind `dynbench`; the process's own when None.

    Returns:
        The exit code; see the table in `dynbench --help`.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    try:
        result = group.main(given, prog_name="dynbench", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        return _fail(given, _usage(given, error))
    except click.Abort as stopped:  # what click makes of a KeyboardInterrupt
        return _fail(given, user_error(stopped.__cause__ or KeyboardInterrupt()))
    except (Exception, KeyboardInterrupt) as error:  # the last resort of the command line
        return _fail(given, _meaning(given, error))
    return result if isinstance(result, int) else EXIT_OK


def run_process() -> NoReturn:
    """Run the process's own command line and end with its exit code.

    A rank that torchrun or srun started ends without the interpreter's shutdown, in which gloo's threads may abort.
    """
    handle(terminate, (signal.SIGTERM, signal.SIGHUP))
    code = main()
    if "RANK" in os.environ and "torch" in sys.modules:
        from dynbench.engine.rank.rank_process import exit_now

        exit_now(code)
    sys.exit(code)


def _prepare_streams() -> None:
    """Streams that take everything: closed ones lead nowhere, characters that the locale lacks are escaped."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _abandon_stdout() -> None:
    """What is still buffered goes nowhere, so that the interpreter does not fail on it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(given: Sequence[str], error: click.ClickException) -> UsageError:
    """What click says; of an option with the nearest spelling, for which the dashes in front do not count."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else f"dynbench {_command_name(given) or ''}".rstrip()
    message = error.format_message()
    if isinstance(error, click.NoSuchOption):
        near = nearest(error.option_name.lstrip("-"), [name.lstrip("-") for name in error.possibilities or ()])
        message = f"{error.message} Did you mean '--{near}'?" if near else error.message
    return UsageError(message, f"{path} --help lists what there is.")


def _meaning(given: Sequence[str], error: BaseException) -> DynbenchError:
    """What an exception means to the user; an unforeseen one is a bug, or a mistake in the code of a plug-in."""
    meaning = user_error(error)
    if isinstance(meaning, BugError):
        from dynbench.plugins import outside

        if place := outside.where(error):
            if "--debug" in given:
                _print_traceback(sys.stderr)
            hint = f"The error comes from the code of a plug-in ({outside.VARIABLE}); --debug prints the traceback."
            return UsageError(f"{place}: {meaning.message}", hint)
        _keep_traceback(given, meaning)
    return meaning


def _print_traceback(file: TextIO) -> None:
    import traceback

    traceback.print_exc(file=file)


def _keep_traceback(given: Sequence[str], bug: BugError) -> None:
    """The traceback of the exception at hand goes to stderr under `--debug`, else to a file that the hint names."""
    import tempfile

    if "--debug" in given:
        _print_traceback(sys.stderr)
        where = "the traceback is above."
    else:
        try:
            with tempfile.NamedTemporaryFile("w", prefix="dynbench-bug-", suffix=".txt", delete=False) as file:
                file.write(f"dynbench {__version__} {' '.join(given)}\n\n")
                _print_traceback(file)  # type: ignore[arg-type]  # it writes text
            where = f"the traceback is in {file.name}, --debug prints it."
        except OSError as full:
            where = f"its traceback cannot be kept ({full}), --debug prints it."
    bug.hint = f"This is a bug in dynbench; {where} {bug.hint}".rstrip()


def _fail(given: Sequence[str], error: DynbenchError) -> int:
    """Say what went wrong on stderr, and as one JSON object on stdout under `--json`.

    Where nobody reads stdout any more, as behind `head`, nothing is said.
    """
    if isinstance(error, Interrupted) and error.signum == signal.SIGPIPE:
        _abandon_stdout()
        return error.exit_code
    from dynbench.table_text import printable

    lines = printable(error.message).splitlines() or [error.kind]
    opening = lines if len(lines) == 1 else [f"{len(lines)} problems", *(f"  {line}" for line in lines)]
    click.echo("error: " + "\n".join(opening), err=True)
    if error.hint:
        click.echo(f"hint: {printable(error.hint)}", err=True)
    if error.run_path is not None:
        click.echo(f"run: {printable(str(error.run_path))}", err=True)
    if "--json" in given and os.environ.get("RANK", "0") == "0":  # within torchrun, rank 0 speaks for all
        from dynbench.cli.common import print_json

        run = {} if error.run_path is None else {"run": {"id": error.run_path.name, "path": error.run_path}}
        said = {"schema_version": 1, "command": _command_name(given), **run, **(error.result or {})}
        try:
            print_json({**said, "error": error.as_dict()})
            sys.stdout.flush()
        except OSError:
            _abandon_stdout()
    return error.exit_code


def _command_name(given: Sequence[str]) -> str | None:
    """The command as its JSON names it: `train`, `runs ls`."""
    words = [word for word in given if not word.startswith("-")]
    if not words or words[0] not in COMMANDS:
        return None
    return " ".join(words[:2]) if words[0] in GROUPS else words[0]


if __name__ == "__main__":
    run_process()
