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
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    """One flag of the configuration.

    Args:
        option: as typed, with dashes.
        key: dotted key that it sets.
        help: one line; `{names}` stands for the plug-ins that the key takes.
        metavar: what stands for the value in the help; empty for the choices.
        choices: all values, where they are few and fixed.
        aliases: other spellings.
    """

    option: str
    key: str
    help: str
    metavar: str
    choices: tuple[str, ...]
    aliases: tuple[str, ...] = ()

    @property
    def parameter(self) -> str:
        """The name under which click passes the value."""
        return f"flag_{self.key.replace('.', '__')}"

    @property
    def declarations(self) -> tuple[str, ...]:
        """Its spellings and the parameter, as click takes them."""
        return (self.option, *self.aliases, self.parameter)


def _read_flags() -> tuple[Flag, ...]:
    with Path(__file__).with_name("flags.csv").open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return tuple(
        Flag(option, key, text, metavar, tuple(filter(None, choices.split("|"))), tuple(filter(None, [alias])))
        for options, key, metavar, choices, text in rows
        for option, _, alias in [options.partition("|")]
    )


FLAGS = _read_flags()


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


table_option = click.option(
    "--format",
    "table_form",
    type=click.Choice(["table", "md", "csv"]),
    default="table",
    help="What the result's table is printed as; md and csv leave all else to stderr.  [default: table]",
)
"""For commands whose result is a table. Must stand above `common_options`."""

name_options = option_group(
    click.option("--name", metavar="NAME", help="Name to find the run by."),
    click.option("--replace", is_flag=True, help="Take the name over; the older run keeps its id."),
)
"""Received as `name` and `replace`."""

gate_options = option_group(
    click.option("--strict", is_flag=True, help="Exit 6 when a check finds more than information."),
    click.option(
        "--fail-on",
        multiple=True,
        metavar="CONDITION,...",
        help="Exit 6 on a verdict (slower, faster, same, ambiguous, estimate), different-loss, or findings.",
    ),
)
"""Received as `strict` and `fail_on`."""

question_option = click.option(
    "--question",
    metavar="NAME",
    help="What is compared: schedule, sync, compress, precision, scaling, levers (several at once), steps (packing "
    "or fewer), topology (all-reduce or server).  [default: found from what the arms differ in]",
)

_LAUNCHES: dict[str, Decorator] = {
    "count": click.option("--launches", "count", type=int, metavar="N", help="Launches per arm; else the recipe's."),
    "mode": click.option(
        "--launch-mode",
        "mode",
        type=click.Choice(["auto", "interleaved", "apart"]),
        help="Arms taking turns in shared launches, or each in its own; auto: shared where they can be.",
    ),
    "block": click.option("--block", type=int, metavar="STEPS", help="Steps of a turn, interleaved.  [default: 1]"),
    "half_width": click.option(
        "--half-width", metavar="PERCENT", help="As many launches as an interval of +-PERCENT needs, like 3%."
    ),
    "first": click.option(
        "--first-launches", "first", type=int, metavar="N", help="With --half-width: the first stage.  [default: 8]"
    ),
    "max_launches": click.option(
        "--max-launches", type=int, metavar="N", help="With --half-width: most launches per arm."
    ),
    "max_time_s": click.option(
        "--max-time", "max_time_s", type=Duration(), metavar="TIME", help="With --half-width: like 20m or 1.5h."
    ),
}
"""By key of `launches`."""

launch_options = option_group(*_LAUNCHES.values())
"""How many launches, and how."""


class _FieldOption(click.Option):
    """A flag whose help takes names and default from its field, looked up when the help is asked for.

    Args:
        flag: the flag.
        shows_default: the help ends with the default.
    """

    def __init__(self, *arguments: Any, flag: Flag, shows_default: bool, **settings: Any) -> None:
        super().__init__(
            *arguments,
            metavar="|".join(flag.choices) or flag.metavar,
            shell_complete=lambda context, parameter, begin: [word for word in flag.choices if word.startswith(begin)],
            **settings,
        )
        self._flag, self._shows_default = flag, shows_default

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The option and its help."""
        from dynbench.config.describe import allowed_words, field_of

        record, found = super().get_help_record(ctx), field_of(self._flag.key)
        if record is None or found is None:
            return record
        text = record[1].replace("{names}", ", ".join(allowed_words(found[0])))
        default = found[0].default
        if self._shows_default and isinstance(default, str | int | float):
            text = f"{text} [{default}]"
        return record[0], text


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
            help="YAML file with the configuration.",
        ),
        click.option(
            "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set any field, like train.steps=200."
        ),
        *([_compress_config] if any(flag.key == "compress.name" for flag in chosen) else []),
        *(
            click.option(*flag.declarations, cls=_FieldOption, flag=flag, shows_default=defaults, help=flag.help)
            for flag in chosen
        ),
    )


_common = option_group(
    click.option(
        "--results",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of the runs; else $DYNBENCH_RESULTS, else ./results.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="Errors, and the result in a line: its path, or the verdict."),
    click.option("-v", "--verbose", is_flag=True, help="More details."),
    click.option("--debug", is_flag=True, help="Details of the libraries too; tracebacks."),
)


def common_options(function: Callable[..., object]) -> Callable[..., object]:
    """`--results --json -q -v --debug`; the callback receives `settings`. Put it next to the function."""

    @functools.wraps(function)
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
