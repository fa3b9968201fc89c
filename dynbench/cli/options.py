"""The options that commands share, declared once.

A command is decorated with what it takes and receives one `Settings`:

    @click.command()
    @config_options("schedule", "train")
    @common_options
    def command(settings: Settings) -> None:
        config = settings.config()
        store = settings.store()

Option names may be written with underscores for dashes. Values of the configuration's flags are passed on as typed: the
configuration reads them by its own types, so that all mistakes, of the file and of the command line, are reported
together.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynbench.cli.output import set_up_logging, stdout_holds
from dynbench.units import parse_duration_s

if TYPE_CHECKING:
    from dynbench.cli.output import Form
    from dynbench.config.schema import Config
    from dynbench.runs.store import RunStore

_COMPRESS = "compress_config"
FILE_PATH = click.Path(path_type=Path, dir_okay=False)
"""Of options that name a file."""
Decorator = Callable[[Callable[..., object]], Callable[..., object]]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of the configuration: a row of `flags.csv`.

    Args:
        group: heading in the help.
        common: `--help` lists it, not only `--help-all`.
        option: as typed, with dashes.
        aliases: other spellings.
        key: dotted key that it sets.
        metavar: what stands for the value in the help; the choices where there are some.
        choices: all values, where they are few and fixed.
        help: one line.
    """

    group: str
    common: bool
    option: str
    aliases: tuple[str, ...]
    key: str
    metavar: str
    choices: tuple[str, ...]
    help: str

    @property
    def parameter(self) -> str:
        """The name under which click passes the value."""
        return f"flag_{self.key.replace('.', '__')}"


def _read_flags() -> Iterator[Flag]:
    with Path(__file__).with_name("flags.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            option, *aliases = row["option"].split("|")
            choices = tuple(filter(None, row["choices"].split("|")))
            metavar = row["metavar"] or row["choices"]
            common = bool(row["common"])
            yield Flag(row["group"], common, option, tuple(aliases), row["key"], metavar, choices, row["help"])


FLAGS = tuple(_read_flags())


@dataclass(frozen=True)
class Settings:
    """What the shared options said.

    Args:
        config_path: the file of `-c/--config`.
        overrides: the texts of `--set`.
        flags: dotted key to value of the flags that were given.
        results: the folder of `--results`.
        as_json: `--json` was given: print one object and nothing else on stdout.
        verbosity: -1 under `-q`, 1 under `-v`, else 0.
        debug: `--debug` was given.
        form: what the result's table is printed as, by `--format`.
        launches: key of `launches` to what its option was given, or None; empty for commands without these options.
    """

    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    flags: Mapping[str, object] = field(default_factory=dict)
    results: Path | None = None
    as_json: bool = False
    verbosity: int = 0
    debug: bool = False
    form: Form = "table"
    launches: Mapping[str, object] = field(default_factory=dict)

    def config(self, *, paths: bool = False, trains: bool = True) -> Config:
        """The configuration: flags over `--set` over the file over the defaults.

        Args:
            paths: also look up the files and folders that training reads.
            trains: ranks are to train with it; False leaves out the rules on their batches.

        Raises:
            ConfigError: every mistake found.
        """
        from dynbench.config.layers import load_config

        return load_config(self.config_path, self.overrides, self.flags, paths=paths, trains=trains)

    def with_flag(self, key: str, value: object) -> Settings:
        """The same with one more setting, as if a flag had given it."""
        return dataclasses.replace(self, flags={**self.flags, key: value})

    def store(self) -> RunStore:
        """The run registry."""
        from dynbench.runs.store import RunStore, default_root

        return RunStore(self.results or default_root())

    @property
    def sets(self) -> dict[str, str]:
        """Dotted key to option, of what `--set` and the flags set."""
        keys = [text.partition("=")[0].strip() for text in self.overrides]
        names = {flag.key: flag.option for flag in FLAGS}
        flags = {key: names.get(key, f"--compress-config {key}") for key in self.flags}
        return {key: f"--set {key}" for key in keys if key} | flags

    @property
    def configures(self) -> bool:
        """Whether a file, `--set` or a flag sets anything of the configuration."""
        return bool(self.config_path or self.overrides or self.flags)

    @property
    def quiet(self) -> bool:
        """Under `-q`: the result is a line for a script, the path of what was made or shown, or the verdict.

        Where `--format` asks for the result as a table, that is the result, and nothing else is said.
        """
        return self.verbosity < 0 and self.form == "table"

    @property
    def shows_progress(self) -> bool:
        """False under `-q`."""
        return self.verbosity >= 0


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
        every = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all options.",
        )
        return [*found, every]

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


def option_group(*options: Decorator) -> Decorator:
    """A decorator that adds several options, which the help lists in this order."""

    def add(function: Callable[..., object]) -> Callable[..., object]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


output_option = partial(click.option, cls=Option, group="Output")
table_option = output_option(
    "--format",
    "table_form",
    rare=True,
    type=click.Choice(["table", "md", "csv"]),
    default="table",
    help="What the result's table is printed as; md and csv leave all else to stderr.  [default: table]",
)
"""For commands whose result is a table. Must stand above `common_options`."""

name_options = option_group(
    output_option("--name", metavar="NAME", help="Name to find the run by."),
    output_option("--replace", rare=True, is_flag=True, help="Take the name over; the older run keeps its id."),
)
"""Received as `name` and `replace`."""

_analysis = partial(click.option, cls=Option, group="Analysis")
gate_options = option_group(
    _analysis("--strict", is_flag=True, help="Exit 6 when a check finds more than information."),
    _analysis(
        "--fail-on",
        multiple=True,
        metavar="CONDITION,...",
        help="Exit 6 on a verdict (slower, faster, same, ambiguous, estimate), different-loss, or findings.",
    ),
)
"""Received as `strict` and `fail_on`."""

question_option = _analysis(
    "--question",
    rare=True,
    metavar="NAME",
    help="What is compared: schedule, sync, compress, precision, scaling, levers (several at once), steps (packing "
    "or fewer), topology (all-reduce or server).  [default: found from what the arms differ in]",
)

_launches = partial(click.option, cls=Option, group="Launches")
_LAUNCHES: dict[str, Decorator] = {
    "count": _launches("--launches", "count", type=int, metavar="N", help="Launches per arm; else the recipe's."),
    "mode": _launches(
        "--launch-mode",
        "mode",
        rare=True,
        type=click.Choice(["auto", "interleaved", "apart"]),
        help="Arms taking turns in shared launches, or each in its own; auto: shared where they can be.",
    ),
    "block": _launches(
        "--block", rare=True, type=int, metavar="STEPS", help="Steps of a turn, interleaved.  [default: 1]"
    ),
    "half_width": _launches(
        "--half-width", metavar="PERCENT", help="As many launches as an interval of +-PERCENT needs, like 3%."
    ),
    "first": _launches(
        "--first-launches",
        "first",
        rare=True,
        type=int,
        metavar="N",
        help="With --half-width: the first stage.  [default: 8]",
    ),
    "max_launches": _launches(
        "--max-launches", rare=True, type=int, metavar="N", help="With --half-width: most launches per arm."
    ),
    "max_time_s": _launches(
        "--max-time", "max_time_s", type=Duration(), metavar="TIME", help="With --half-width: like 20m or 1.5h."
    ),
}
"""By key of `launches`."""

launch_options = option_group(*_LAUNCHES.values())
"""How many launches, and how."""


class _FieldOption(Option):
    """A flag whose help ends with the default of its field, which is looked up when the help is asked for.

    Args:
        flag: the flag.
        shows_default: whether it does.
    """

    def __init__(self, *arguments: Any, flag: Flag, shows_default: bool, **settings: Any) -> None:
        super().__init__(
            *arguments,
            group=flag.group,
            rare=not flag.common,
            metavar=flag.metavar,
            help=flag.help,
            shell_complete=lambda context, parameter, begin: [word for word in flag.choices if word.startswith(begin)],
            **settings,
        )
        self._key = flag.key if shows_default else ""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The option and its help."""
        from dynbench.config.describe import field_of

        record, found = super().get_help_record(ctx), field_of(self._key)
        default = None if found is None else found[0].default
        if record is None or not isinstance(default, str | int | float):
            return record
        return record[0], f"{record[1]} [{default}]"


def _compress_settings(context: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, object]:
    """Settings of the section by their dotted keys, of a JSON object."""
    try:
        found = json.loads(value or "{}")
    except ValueError as error:
        raise click.BadParameter(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter(f'expected a JSON object like {{"ratio": 0.01}}, got {value}')
    return {f"compress.{key}": setting for key, setting in found.items()}


_compress_config = click.option(
    "--compress-config",
    "--comm-config-json",
    _COMPRESS,
    cls=Option,
    group="Synchronisation",
    rare=True,
    metavar="JSON",
    callback=_compress_settings,
    help='Settings of `compress` as one object, like {"ratio": 0.01}; options and flags of their own win.',
)
"""In place of several `--set compress.KEY=VALUE`."""


def config_options(*sections: str, defaults: bool = True) -> Decorator:
    """`-c --set` and the flags of the given sections of the configuration; all of them when none is named.

    Single flags can be named by their dotted key. Must stand above `common_options`.

    Args:
        sections: sections and dotted keys.
        defaults: the help shows the schema's defaults; False where something else decides, like a recipe.
    """
    chosen = [flag for flag in FLAGS if not sections or flag.key in sections or flag.key.partition(".")[0] in sections]
    return option_group(
        click.option(
            "-c",
            "--config",
            "config_path",
            type=FILE_PATH,
            help="Configuration, a YAML file.",
        ),
        click.option(
            "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set any field, like train.steps=200."
        ),
        *([_compress_config] if any(flag.key == "compress.name" for flag in chosen) else []),
        *(
            click.option(
                *(flag.option, *flag.aliases, flag.parameter), cls=_FieldOption, flag=flag, shows_default=defaults
            )
            for flag in chosen
        ),
    )


_common = option_group(
    output_option(
        "--results",
        rare=True,
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of the runs; else $DYNBENCH_RESULTS, else ./results.",
    ),
    output_option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout."),
    output_option("-q", "--quiet", is_flag=True, help="Only errors, and a path or verdict."),
    output_option("-v", "--verbose", is_flag=True, help="More details."),
    output_option("--debug", rare=True, is_flag=True, help="Details of the libraries too; tracebacks."),
)


def common_options(function: Callable[..., object]) -> Callable[..., object]:
    """`--results --json -q -v --debug`; the callback receives `settings`. Put it next to the function."""

    @wraps(function)
    def wrapper(**given: Any) -> object:
        settings = _take_settings(given)

        set_up_logging(settings.verbosity, settings.debug)
        if settings.as_json and settings.form != "table":
            raise click.UsageError(f"--json and --format {settings.form} both say what stdout holds; leave one out.")
        with stdout_holds(settings.form, tells=settings.verbosity >= 0):
            return function(settings=settings, **given)

    return _common(wrapper)


def _take_settings(given: dict[str, Any]) -> Settings:
    """Take the shared options out of a callback's arguments."""
    flags = {flag.key: given.pop(flag.parameter) for flag in FLAGS if flag.parameter in given}
    flags = {**given.pop(_COMPRESS, {}), **{key: value for key, value in flags.items() if value is not None}}
    quiet, verbose = given.pop("quiet"), given.pop("verbose")
    return Settings(
        config_path=given.pop("config_path", None),
        overrides=given.pop("overrides", ()),
        flags=flags,
        results=given.pop("results"),
        as_json=given.pop("as_json"),
        verbosity=-1 if quiet else 1 if verbose else 0,
        debug=given.pop("debug"),
        form=given.pop("table_form", "table"),
        launches={key: given.pop(key) for key in _LAUNCHES if key in given},
    )
