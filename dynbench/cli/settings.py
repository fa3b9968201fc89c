"""What the shared options of a command say, and commands written so that they say it again."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynbench.cli.main import load_command
from dynbench.cli.output import print_json, print_lines

if TYPE_CHECKING:
    from dynbench.cli.output import Form
    from dynbench.config.schema import Config
    from dynbench.runs.run import Run
    from dynbench.runs.store import Naming, RunStore


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of the configuration: a row of `flags.csv`.

    Args:
        group: heading in the help.
        common: `--help` lists it, not only `--help-all`.
        names: as typed, with dashes; the first is its name, the others are other spellings.
        key: dotted key that it sets.
        metavar: what stands for the value in the help; the choices where there are some.
        choices: all values, where they are few and fixed.
        default: that of its field, where it is a word or a number.
        help: one line.
    """

    group: str
    common: bool
    names: tuple[str, ...]
    key: str
    metavar: str
    choices: tuple[str, ...]
    default: str
    help: str

    @property
    def parameter(self) -> str:
        """The name under which click passes the value."""
        return f"flag_{self.key.replace('.', '__')}"


def _read_flags() -> Iterator[Flag]:
    with Path(__file__).with_name("flags.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            names, choices = (tuple(filter(None, row[column].split("|"))) for column in ("option", "choices"))
            metavar = row["metavar"] or row["choices"]
            rest = (choices, row["default"], row["help"])
            yield Flag(row["group"], bool(row["common"]), names, row["key"], metavar, *rest)


FLAGS = tuple(_read_flags())


@dataclass(frozen=True)
class Settings:
    """What the shared options said.

    Args:
        command: as its JSON names it: `train`, `runs ls`.
        config_path: the file of `-c/--config`.
        overrides: the texts of `--set`.
        flags: dotted key to value of the flags that were given.
        results: the folder of `--results`.
        as_json: `--json` was given: print one object and nothing else on stdout.
        verbosity: -1 under `-q`, 1 under `-v`, else 0.
        form: what the result's table is printed as, by `--format`.
        launches: key of `launches` to what its option was given, or None; empty for commands without these options.
        naming: what `--name` and `--replace` were given; empty for commands without these options.
    """

    command: str = ""
    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    flags: Mapping[str, object] = field(default_factory=dict)
    results: Path | None = None
    as_json: bool = False
    verbosity: int = 0
    form: Form = "table"
    launches: Mapping[str, object] = field(default_factory=dict)
    naming: Naming = field(default_factory=dict)  # type: ignore[assignment]  # a TypedDict without its keys

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

    def with_flags(self, flags: Mapping[str, object]) -> Settings:
        """The same with more settings, as if flags had given them."""
        return replace(self, flags={**self.flags, **flags})

    def store(self) -> RunStore:
        """The run registry."""
        from dynbench.runs.store import RunStore, default_root

        return RunStore(self.results or default_root())

    @property
    def sets(self) -> dict[str, str]:
        """Dotted key to option, of what `--set` and the flags set."""
        keys = [text.partition("=")[0].strip() for text in self.overrides]
        names = {flag.key: flag.names[0] for flag in FLAGS}
        flags = {key: names.get(key, f"--compress-config {key}") for key in self.flags}
        return {key: f"--set {key}" for key in keys if key} | flags

    @property
    def configures(self) -> bool:
        """Whether a file, `--set` or a flag sets anything of the configuration."""
        return bool(self.config_path or self.overrides or self.flags)

    @property
    def quiet(self) -> bool:
        """Under `-q`: the result is a line for a script, the path of what was made or shown, or the verdict.

        Where `--format` asks for the result as a table, that is the result, and nothing else is printed.
        """
        return self.verbosity < 0 and self.form == "table"

    @property
    def for_people(self) -> bool:
        """Whether the result is shown to people, neither as JSON nor in lines for a script."""
        return not (self.as_json or self.quiet)

    @property
    def shows_progress(self) -> bool:
        """False under `-q`."""
        return self.verbosity >= 0

    def working(
        self, what: str = "", *, after_s: float = 0.0, line_every_s: float = 0.0
    ) -> AbstractContextManager[Callable[[str], None]]:
        """See `console.working`; shows nothing under `-q`."""
        from dynbench.cli.console import working

        return working(self.shows_progress, what, after_s=after_s, line_every_s=line_every_s)

    def printed(self, content: Mapping[str, object], short: str | Iterable[str] = ()) -> bool:
        """Print a result for a program where one asked for it; False where it is left to be shown to people.

        Args:
            content: of the object under `--json`.
            short: what is printed under `-q`, in lines.
        """
        if self.as_json:
            print_json(self.record(content))
        elif self.quiet:
            print_lines(*([short] if isinstance(short, str) else short))
        return not self.for_people

    def record(self, content: Mapping[str, object]) -> dict[str, object]:
        """The object that is printed under `--json`."""
        return {"schema_version": 1, "command": self.command, **content}


def next_command(command: str, *words: str, root: Path) -> str:
    """A command with its words; the registry is named where it is not the default one.

    Args:
        command: as typed.
        words: arguments and options, not quoted yet.
        root: folder of the registry.
    """
    from dynbench.runs.store import results_option

    return f"dynbench {shlex.join([command, *words])}{results_option(root)}"


def setting_words(command: str, run: Run, overrides: Mapping[str, object]) -> list[str]:
    """The options that give a command the configuration of a run with other values.

    Args:
        command: one that takes `-c` and `--set`.
        run: whose `config.yaml` is given with `-c`.
        overrides: dotted key to value; those that the run has are left out, and the others written as flags where the
            command has one.
    """
    from dynbench.config.schema import changed, differences, value_of
    from dynbench.config.layers import replaced_by
    from dynbench.config.values import written

    config = run.config()
    wanted = changed(config, overrides)
    differing = differences(config, wanted)
    taken = {parameter.name for parameter in load_command(command).params}
    flags = {flag.key: flag.names[0] for flag in FLAGS if flag.parameter in taken}
    words = ["-c", str(run.config_file)]
    for key in overrides:
        # Also where the run has the value, but says it in another way: samples per worker for the global batch.
        if key in differing or any(value_of(config, other) is not None for other in replaced_by([key])):
            text = written(key, value_of(wanted, key))
            words += [flags[key], text] if key in flags else ["--set", f"{key}={text}"]
    return words
