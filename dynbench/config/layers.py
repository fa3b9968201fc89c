"""The settings of a command as one flat map from dotted key to value and source, and the configuration made of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from dynbench.config.paths import path_problems
from dynbench.config.rules import check_rules, known_world_size
from dynbench.config.schema import Config
from dynbench.config.values import explain, field_of, read_text, section_keys, shown, unknown_key
from dynbench.config.yaml_strict import Document, Value, YamlMapping, parse_yaml, read_yaml
from dynbench.errors import ConfigError, UsageError
from dynbench.plugins.policies import Layout, named_plan, plan_of

PAIRS = {
    ("train.steps", "train.epochs"): "how long to train",
    ("train.global_batch", "train.batch_per_worker"): "how large a step is",
}
"""A usual setting and another one, which is null where it is not used, and what both say."""


def replaced_by(keys: Iterable[str]) -> Iterator[str]:
    """The settings below that those of `keys`, given together, take the place of."""
    given = set(keys)
    for pair in PAIRS:
        yield from (key for key, other in (pair, pair[::-1]) if other in given and key not in given)


def given_twice(keys: Iterable[str]) -> Iterator[str]:
    """What is wrong with `keys`, given together: a line for each pair of which both are there."""
    given = set(keys)
    for (one, other), both in PAIRS.items():
        if one in given and other in given:
            yield f"{other}: given beside {one}, and both say {both}; leave one of them out"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and where it came from.

    Args:
        value: as YAML has it.
        source: how messages about it open: `c.yaml:4: `, `--set `, or nothing for a flag.
    """

    value: Value
    source: str = ""


class Settings(dict[str, Setting]):
    """Dotted key to setting; later layers replace the settings of earlier ones.

    A top-level key that is not a section, or does not hold a mapping, is stored under its own name and refused by
    `config`.

    Args:
        source: how messages open about a key that no layer sets.
    """

    def __init__(self, source: str = "") -> None:
        super().__init__()
        self.sources = {"": source}
        """Section to how messages open about those of its keys that no layer sets; the empty key is the default."""
        self.problems: list[str] = []
        self.dotted: dict[str, str] = {}
        """Key of a YAML mapping that contains a dot to the message that refuses it."""

    @classmethod
    def of(cls, document: Document, section: str = "") -> Settings:
        """The settings of a document, or of the mapping under one of its top-level keys."""
        settings = cls(f"{document.source}: " if document.source else "")
        settings.problems.extend(document.problems)
        values = document.mapping.get(section) or {} if section else document.mapping
        prefix = f"{section}." if section else ""
        settings.put_mapping(cast(YamlMapping, values), lambda key: document.opening(prefix + key))
        return settings

    def put_mapping(self, values: YamlMapping, where: Callable[[str], str], section: str = "") -> None:
        """Set every field of a YAML mapping.

        Args:
            values: sections with their fields, or the fields of `section`.
            where: returns how messages about a dotted key open.
            section: the section that `values` are the fields of; empty for whole sections.
        """
        for name, value in values.items():
            key = f"{section}.{name}" if section else str(name)
            if "." in str(name):
                self.dotted[key] = f"{where(key)}{key}: {unknown_key((*filter(None, [section]), str(name)))}"
            elif section or not section_keys(key) or not isinstance(value, dict | None):
                self.put(key, Setting(value, where(key)))
            else:
                self.sources[key] = where(key)
                self.put_mapping(value or {}, where, key)

    def put(self, key: str, setting: Setting) -> None:
        """Set a key; one below a field (`launch.slowdown.1`) is added to the mapping that the field holds."""
        section, *names = key.split(".", 2)
        if not names:
            if isinstance(setting.value, dict) and section_keys(key):
                self.put_mapping({key: setting.value}, lambda _: setting.source)
                return
            for below in [other for other in self if other.startswith(f"{key}.")]:
                del self[below]
            if setting.value is None and section_keys(key):
                return
        for above in (section, ".".join([section, *names[:1]]))[: len(names)]:
            found = self.get(above)
            if found is not None and not isinstance(found.value, dict | None):
                self.problems.append(f"{found.source}{above}: {shown(found.value)} cannot hold {key}")
                del self[above]
        if names[1:]:
            key, name = f"{section}.{names[0]}", names[1]
            found = self.get(key, Setting(None, setting.source))
            number = field_of(key) is not None and name.isdecimal()
            value = {**cast(YamlMapping, found.value or {}), int(name) if number else name: setting.value}
            setting = Setting(value, found.source)
        self[key] = setting

    def merge(self, layer: Mapping[str, Setting]) -> None:
        """Merge a higher layer; its settings also remove those that they replace (see `PAIRS`)."""
        for key in replaced_by(layer):
            self.pop(key, None)
        for key, setting in layer.items():
            self.put(key, setting)

    def merge_command_line(self, overrides: Sequence[str], flags: Mapping[str, object]) -> dict[str, Setting]:
        """Merge what the command line sets, and return it as `command_line` does."""
        given, problems = command_line(overrides, flags)
        self.problems.extend([*given_twice(given), *problems])
        self.merge(given)
        if given:
            self.sources[""] = ""
        return given

    def config(self, *, rules: bool = True, paths: bool = False, trains: bool = True) -> Config:
        """The validated configuration.

        Args:
            rules: also check the rules over several fields; a run's record is read without.
            paths: also look up the files and folders that training reads.
            trains: ranks are to train with it; False leaves out the rules on their batches.

        Raises:
            ConfigError: every mistake found in any layer.
        """
        # A configuration with all of the section is a run's, in which one of the two follows from the other.
        if rules and not all(f"train.{name}" in self for name in section_keys("train")):
            twice = given_twice(key for key, setting in self.items() if setting.value is not None)
            self.problems.extend(self._located(problem) for problem in twice)
        self._spell_out_policy()
        try:
            config = Config.model_validate(freeze(self.sections()))
        except ValidationError as error:
            self.problems.extend(explain(error, {key: setting.value for key, setting in self.items()}, self.where))
        self.problems.extend(self.dotted.values())
        if not self.problems:
            found = check_rules(config, known_world_size(config), trains=trains) if rules else []
            found += path_problems(config) if paths else []
            self.problems.extend(map(self._located, found))
        if self.problems:
            raise ConfigError(self.problems)
        return config

    def sections(self) -> YamlMapping:
        """The values as nested mappings: section to field to value."""
        sections: YamlMapping = {}
        for key, setting in self.items():
            section, dot, name = key.partition(".")
            if dot:
                cast(YamlMapping, sections.setdefault(section, {}))[name] = setting.value
            else:
                sections[key] = setting.value
        return sections

    def where(self, dotted: str) -> str:
        """How a message about a key opens."""
        section = dotted.partition(".")[0]
        within = (setting.source for key, setting in self.items() if key.startswith(f"{dotted}."))
        found = self.get(dotted) or self.get(section)
        return found.source if found else next(within, self.sources.get(section, self.sources[""]))

    def _located(self, problem: str) -> str:
        return f"{self.where(problem.partition(':')[0])}{problem}"

    def _spell_out_policy(self) -> None:
        """Put a policy's name that says a layout too (`packed`) as the two settings that it means."""
        given, layout = self.get("schedule.policy"), self.get("workload.layout", Setting(None))
        if given is None or not isinstance(given.value, str) or "workload" in self:
            return
        policy, meant = plan_of(given.value)
        if policy == given.value:
            return
        try:
            named_plan(given.value, cast("Layout | None", layout.value))
        except UsageError as error:
            self.problems.append(self._located(error.message))
        self.update(
            {"schedule.policy": Setting(policy, given.source), "workload.layout": Setting(meant, layout.source)}
        )


def command_line(overrides: Sequence[str], flags: Mapping[str, object]) -> tuple[dict[str, Setting], list[str]]:
    """What the command line sets, flags over `--set`, and a line for each mistake in it.

    Args:
        overrides: texts of `--set`, like `train.steps=200`.
        flags: dotted key to value, typed or as typed by the user; None values count as not given.
    """
    typed: list[tuple[str, object, str]] = []
    for text in overrides:
        key, equals, raw = (part.strip() for part in text.partition("="))
        typed.append((key, raw, "--set ") if equals and key else ("", text, "--set "))
    typed += [(key, value, "") for key, value in flags.items() if value is not None]
    settings: dict[str, Setting] = {}
    problems: list[str] = []
    for key, given, source in typed:
        if not key:
            problems.append(f"--set {given}: write it as key=value, like --set train.steps=200")
            continue
        try:
            value = read_text(key, given, source + key) if isinstance(given, str) else cast(Value, given)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        if isinstance(value, dict) and section_keys(key):
            settings |= {f"{key}.{name}": Setting(inner, source) for name, inner in value.items()}
        else:
            settings[key] = Setting(value, source)
    return settings, problems


def freeze(value: object) -> object:
    """Lists as tuples: the schema's sequences are tuples, and strict validation does not convert."""
    if isinstance(value, dict):
        return {key: freeze(item) for key, item in value.items()}
    return tuple(freeze(item) for item in value) if isinstance(value, list) else value


def load_config(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
    *,
    rules: bool = True,
    paths: bool = False,
    trains: bool = True,
) -> Config:
    """The configuration of a command: flags over `--set` over the file over the defaults.

    Args:
        path: a YAML file, or None.
        overrides: texts like `train.steps=200`; the value is read as in a YAML file.
        flags: dotted key to value, typed or as typed by the user; None values count as not given.
        rules: also check the rules over several fields.
        paths: also look up the files and folders that training reads.
        trains: ranks are to train with it; False leaves out the rules on their batches.

    Raises:
        ConfigError: every mistake found, each opening with `file:line` where it has one, and its dotted key.
        UsageError: the file cannot be read.
    """
    document = Document("") if path is None else read_yaml(yaml_text(path), str(path))
    if "arms" in document.mapping:
        raise ConfigError(
            [f"{document.where('arms')}: arms: a recipe, which compares arms; expected a single configuration"],
            f"Run it with `dynbench compare {shlex.quote(str(path))}`. For one of its arms, give -c a file of what "
            "stands under `settings`, and what the arm sets with --set.",
        )
    settings = Settings.of(document)
    settings.merge_command_line(overrides, flags or {})
    return settings.config(rules=rules, paths=paths, trains=trains)


def load_mapping(path: Path) -> Document:
    """A YAML file as a mapping with the lines of its dotted keys, for files that hold more than a configuration.

    Raises:
        ConfigError: the file is not strict YAML.
        UsageError: the file cannot be read.
    """
    return parse_yaml(yaml_text(path), str(path))


def yaml_text(path: Path) -> str:
    """The text of a YAML file.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 text at byte {error.start}"
        raise UsageError(f"{path}: cannot be read: {reason}", "Give a YAML file.") from error
