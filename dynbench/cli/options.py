"""The one shape of a command, and the options that commands share, declared once.

    @command(config=("schedule", "train"), named=True, table=True, epilog="Example: ...")
    @click.option("--dry-run", is_flag=True, help="...")
    def command(settings: Settings, dry_run: bool) -> None:
        config = settings.config()

Option names may be written with underscores for dashes. Values of the configuration's flags are passed on as typed: the
configuration reads them by its own types, so that all mistakes, of the file and of the command line, are reported
together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from dynbench.cli.common import FLAGS, Flag, Settings, set_up_logging, stdout_holds
from dynbench.units import parse_duration_s

FILE_PATH = click.Path(path_type=Path, dir_okay=False)
"""Of options that name a file."""
ANY_PATH = click.Path(path_type=Path)
GROUPS = (
    *("Options", "Data", "Model", "Schedule", "Synchronisation", "Training"),
    *("Launch", "Launches", "Probe", "Analysis", "Output"),
)
"""Headings of options, in the order of the help."""
MANY_OPTIONS = 30
"""A command with more of them hides the rare ones from `--help`."""
OPTION_WIDTH = 24
"""Columns of options beside their help; a longer one has a line of its own."""
_SHOW_ALL = "dynbench.cli.options.show_all"


class Option(click.Option):
    """An option under a heading of the help.

    Args:
        group: the heading, of `GROUPS`.
        rare: `--help` of a command with many options leaves it to `--help-all`.
    """

    def __init__(self, *arguments: Any, group: str, rare: bool = False, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.group, self.rare = group, rare


class Command(click.Command):
    """A command whose help lists options by group, and rare ones of many only under `--help-all`."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Those of the command, and the options of help."""
        found = super().get_params(ctx)
        if len(found) <= MANY_OPTIONS:
            return found
        how: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _show_all}
        return [*found, click.Option(["--help-all"], help="Show all options.", **how)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a section a group."""
        found = self.get_params(ctx)
        whole = len(found) <= MANY_OPTIONS or _SHOW_ALL in ctx.meta
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in GROUPS}
        for parameter in found:
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None and (whole or not getattr(parameter, "rare", False)):
                groups[getattr(parameter, "group", "Output" if parameter.is_eager else "Options")].append(record)
        formatter.write_paragraph()
        for title, records in groups.items():
            if records:
                formatter.write_heading(title)
                formatter.indent()
                formatter.write_dl([(first.ljust(OPTION_WIDTH), text) for first, text in records], OPTION_WIDTH)
                formatter.dedent()


def _show_all(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        context.meta[_SHOW_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


class Duration(click.ParamType[float]):
    """A time like `20m`."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds of `20m`."""
        try:
            return parse_duration_s(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _FlagOption(Option):
    """A flag of the configuration, whose help may end with the default of its field."""

    def __init__(self, flag: Flag, shows_default: bool) -> None:
        super().__init__(
            [*flag.names, flag.parameter],
            group=flag.group,
            rare=not flag.common,
            metavar=flag.metavar,
            help=f"{flag.help} [{flag.default}]" if shows_default and flag.default else flag.help,
            shell_complete=lambda context, parameter, begin: [word for word in flag.choices if word.startswith(begin)],
        )


def _compress_settings(context: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, object]:
    """Settings of the section by their dotted keys, of a JSON object."""
    try:
        found = json.loads(value or "{}")
    except ValueError as error:
        raise click.BadParameter(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter(f'expected a JSON object like {{"ratio": 0.01}}, got {value}')
    return {f"compress.{key}": setting for key, setting in found.items()}


output_option = partial(Option, group="Output")
_plain = partial(Option, group="Options")
_analysis = partial(Option, group="Analysis")
_launches = partial(Option, group="Launches")
_CONFIG = (
    _plain(["-c", "--config", "config_path"], type=FILE_PATH, help="Configuration, a YAML file."),
    _plain(["--set", "overrides"], multiple=True, metavar="KEY=VALUE", help="Set any field, like train.steps=200."),
)
_COMPRESS = Option(
    ["--compress-config", "--comm-config-json", "compress_config"],
    group="Synchronisation",
    rare=True,
    metavar="JSON",
    callback=_compress_settings,
    help='Settings of `compress` as one object, like {"ratio": 0.01}; options and flags of their own win.',
)
_NAMING = (
    output_option(["--name"], metavar="NAME", help="Name to find the run by."),
    output_option(["--replace"], rare=True, is_flag=True, help="Take the name over; the older run keeps its id."),
)
_TABLE = output_option(
    ["--format", "form"],
    rare=True,
    type=click.Choice(["table", "md", "csv"]),
    default="table",
    help="What the result's table is printed as; md and csv leave all else to stderr.  [default: table]",
)
_COMMON = (
    output_option(
        ["--results"],
        rare=True,
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of the runs; else $DYNBENCH_RESULTS, else ./results.",
    ),
    output_option(["--json", "as_json"], is_flag=True, help="Print one JSON object on stdout."),
    output_option(["-q", "--quiet"], is_flag=True, help="Only errors, and a path or verdict."),
    output_option(["-v", "--verbose"], is_flag=True, help="More details."),
    output_option(["--debug"], rare=True, is_flag=True, help="Details of the libraries too; tracebacks."),
)
GATE = (
    _analysis(["--strict"], is_flag=True, help="Exit 6 when a check finds more than information."),
    _analysis(
        ["--fail-on"],
        multiple=True,
        metavar="CONDITION,...",
        help="Exit 6 on a verdict (slower, faster, same, ambiguous, estimate), different-loss, or findings.",
    ),
)
"""Received as `strict` and `fail_on`."""
QUESTION = _analysis(
    ["--question"],
    rare=True,
    metavar="NAME",
    help="What is compared: schedule, sync, compress, precision, scaling, bottleneck (emulated links), levers (several "
    "at once), steps (packing or fewer), topology (all-reduce or server).  [default: found from what arms differ in]",
)
LAUNCHES = (
    _launches(["--launches", "count"], type=int, metavar="N", help="Launches per arm; else the recipe's."),
    _launches(
        ["--launch-mode", "mode"],
        rare=True,
        type=click.Choice(["auto", "interleaved", "apart"]),
        help="Arms taking turns in shared launches, or each in its own; auto: shared where they can be.",
    ),
    _launches(["--block"], rare=True, type=int, metavar="STEPS", help="Steps of a turn, interleaved.  [default: 1]"),
    _launches(["--half-width"], metavar="PERCENT", help="As many launches as an interval of +-PERCENT needs, like 3%."),
    _launches(
        ["--first-launches", "first"],
        rare=True,
        type=int,
        metavar="N",
        help="With --half-width: the first stage.  [default: 8]",
    ),
    _launches(["--max-launches"], rare=True, type=int, metavar="N", help="With --half-width: most launches per arm."),
    _launches(
        ["--max-time", "max_time_s"], type=Duration(), metavar="TIME", help="With --half-width: like 20m or 1.5h."
    ),
)
"""How many launches, and how; received as the settings' `launches`."""


def command(
    name: str | None = None,
    *,
    group: click.Group | None = None,
    config: Iterable[str] = (),
    defaults: bool = True,
    options: Sequence[Option] = (),
    named: bool = False,
    table: bool = False,
    **about: Any,
) -> Callable[[Callable[..., object]], Command]:
    """A command whose callback receives its own options and, of those that commands share, one `settings`.

    Args:
        name: as typed; the function's where the table of commands has it.
        group: it is a command of.
        config: sections and dotted keys of the configuration whose flags it takes, beside `-c` and `--set`.
        defaults: the help of flags shows the schema's defaults; False where something else decides, like a recipe.
        options: shared options that it takes beside its own, received by their names.
        named: it makes a run, and takes `--name` and `--replace`.
        table: its result is a table, and it takes `--format`.
        about: further settings of the command: `epilog`, `short_help`.
    """
    chosen = {*config}
    flags = [flag for flag in FLAGS if chosen & {flag.key, flag.key.partition(".")[0]}]
    shared = [
        *options,
        *(_CONFIG if chosen else ()),
        *((_COMPRESS,) if any(flag.key == "compress.name" for flag in flags) else ()),
        *(_FlagOption(flag, defaults) for flag in flags),
        *((_TABLE,) if table else ()),
        *_COMMON,
    ]

    def decorate(function: Callable[..., object]) -> Command:
        @click.pass_context
        @wraps(function)
        def run(context: click.Context, /, **given: Any) -> object:
            debug = given.pop("debug")
            settings = settings_of(given, context.command_path.partition(" ")[2])
            set_up_logging(settings.verbosity, debug)
            if settings.as_json and settings.form != "table":
                raise click.UsageError(
                    f"--json and --format {settings.form} both say what stdout holds; leave one out."
                )
            with stdout_holds(settings.form, tells=settings.verbosity >= 0):
                return function(settings=settings, **given)

        made = click.command(name, cls=Command, **about)(run)
        made.params = [*(_NAMING if named else ()), *made.params, *shared]
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def settings_of(given: dict[str, Any], command: str = "") -> Settings:
    """Take the shared options out of a callback's arguments."""
    flags = {flag.key: value for flag in FLAGS if (value := given.pop(flag.parameter, None)) is not None}
    quiet, verbose = given.pop("quiet"), given.pop("verbose")
    plain = ("config_path", "overrides", "results", "as_json", "form")

    def taken(names: Iterable[str | None]) -> dict[str, Any]:
        return {name: given.pop(name) for name in names if name in given}

    return Settings(
        command=command,
        flags={**given.pop("compress_config", {}), **flags},
        verbosity=-1 if quiet else int(verbose),
        launches=taken(option.name for option in LAUNCHES),
        naming=taken(["name", "replace"] if "replace" in given else []),  # type: ignore[arg-type]  # those of `Naming`
        **taken(plain),
    )
