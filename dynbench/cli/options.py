"""The options that commands share, declared once.

A command is decorated with what it takes and receives one `Settings`:

    @click.command()
    @config_options("schedule", "train")
    @common_options
    def command(settings: Settings) -> None:
        config = settings.config()
        store = settings.store()

Option names may be written with underscores for dashes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynbench.cli.flags import FLAGS, Flag
from dynbench.cli.output import set_up_logging, stdout_holds

if TYPE_CHECKING:
    from dynbench.cli.output import Form
    from dynbench.config.schema import Config
    from dynbench.runs.store import RunStore

_COMPRESS = "compress_config"
Decorator = Callable[[Callable[..., object]], Callable[..., object]]


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
    """

    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    flags: Mapping[str, object] = field(default_factory=dict)
    results: Path | None = None
    as_json: bool = False
    verbosity: int = 0
    debug: bool = False
    form: Form = "table"

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
    def quiet(self) -> bool:
        """Under `-q`: the result is a line for a script, the path of what was made or shown, or the verdict.

        Where `--format` asks for the result as a table, that is the result, and nothing else is said.
        """
        return self.verbosity < 0 and self.form == "table"

    @property
    def shows_progress(self) -> bool:
        """False under `-q`."""
        return self.verbosity >= 0


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

    options = (
        click.option("--debug", is_flag=True, help="Details of the libraries too; tracebacks."),
        click.option("-v", "--verbose", is_flag=True, help="More details."),
        click.option("-q", "--quiet", is_flag=True, help="Errors, and the result in a line: its path, or the verdict."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout."),
        click.option(
            "--results",
            type=click.Path(path_type=Path, file_okay=False),
            help="Folder of the runs; else $DYNBENCH_RESULTS, else ./results.",
        ),
    )
    return _decorate(wrapper, options)


class _FieldOption(click.Option):
    """A flag whose help takes names and default from its field, looked up when the help is asked for.

    Args:
        flag: the flag.
        shows_default: the help ends with the default.
    """

    def __init__(self, *arguments: Any, flag: Flag, shows_default: bool, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
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


def config_options(*sections: str, defaults: bool = True) -> Decorator:
    """`-c --set` and the flags of the given sections of the configuration; all of them when none is named.

    Single flags can be named by their dotted key. Must stand above `common_options`.

    Args:
        sections: sections and dotted keys.
        defaults: the help shows the schema's defaults; False where something else decides, like a recipe.
    """
    chosen = [flag for flag in FLAGS if not sections or flag.key in sections or flag.section in sections]

    def decorate(function: Callable[..., object]) -> Callable[..., object]:
        options = [_option(flag, defaults) for flag in reversed(chosen)]
        if any(flag.key == "compress.name" for flag in chosen):
            options.append(_compress_config)
        options += [
            click.option(
                "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set any field, like train.steps=200."
            ),
            click.option(
                "-c",
                "--config",
                "config_path",
                type=click.Path(path_type=Path, dir_okay=False),
                help="YAML file with the configuration.",
            ),
        ]
        return _decorate(function, options)

    return decorate


def table_option(function: Callable[..., object]) -> Callable[..., object]:
    """`--format`, for commands whose result is a table. Must stand above `common_options`."""
    return _decorate(
        function,
        (
            click.option(
                "--format",
                "table_form",
                type=click.Choice(["table", "md", "csv"]),
                default="table",
                help="What the result's table is printed as; md and csv leave all else to stderr.  [default: table]",
            ),
        ),
    )


def name_options(function: Callable[..., object]) -> Callable[..., object]:
    """`--name --replace`, received as `name` and `replace`."""
    return _decorate(
        function,
        (
            click.option("--replace", is_flag=True, help="Take the name over; the older run keeps its id."),
            click.option("--name", metavar="NAME", help="Name to find the run by."),
        ),
    )


def _option(flag: Flag, shows_default: bool) -> Decorator:
    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        return [choice for choice in flag.choices if choice.startswith(incomplete)]

    return click.option(
        flag.option,
        *flag.aliases,
        flag.parameter,
        cls=_FieldOption,
        flag=flag,
        shows_default=shows_default,
        metavar="|".join(flag.choices) or flag.metavar,
        help=flag.help,
        shell_complete=complete,
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


_compress_config = click.option(
    "--compress-config",
    "--comm-config-json",
    _COMPRESS,
    metavar="JSON",
    callback=_compress_settings,
    help='Settings of `compress` as one object, like {"ratio": 0.01}; options and flags of their own win.',
)
"""In place of several `--set compress.KEY=VALUE`."""


def _decorate(function: Callable[..., object], options: Iterable[Decorator]) -> Callable[..., object]:
    for option in options:
        function = option(function)
    return function


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
    )
