"""The next command as a line to paste: the same settings, data and registry, quoted for a shell."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynbench.config.schema import Config
    from dynbench.config.situation import Command


def next_command(command: str, *words: str, root: Path) -> str:
    """A command with its words; the registry is named where it is not the default one.

    Args:
        command: as typed.
        words: arguments and options, not quoted yet.
        root: folder of the registry.
    """
    from dynbench.runs.store import results_option

    return f"dynbench {shlex.join([command, *words])}{results_option(root)}"


def setting_words(command: Command, wanted: Config, file: Path | None = None) -> list[str]:
    """The options with which a command gets a configuration, as far as it reads it.

    Args:
        command: one that takes `-c` and `--set`.
        wanted: the configuration.
        file: what was given with `-c`; it is given again, with what differs from it.
    """
    from dynbench.cli.main import COMMANDS
    from dynbench.cli.options import FLAGS
    from dynbench.config.digest import differences
    from dynbench.config.effects import EFFECTS
    from dynbench.config.schema import Config
    from dynbench.config.situation import Situation
    from dynbench.config.typed_text import written
    from dynbench.config.unread import left_unsaid

    base = _of_file(file)
    words = [] if base is None else ["-c", str(file)]
    situation = Situation(command, wanted, wanted, probes=wanted.probe.run in (None, "auto"))
    before, unsaid = base or Config(), left_unsaid(wanted)
    back = left_unsaid(before) - unsaid  # what the file says in the other way
    changed = [key for key in dict.fromkeys((*differences(before, wanted), *sorted(back))) if key not in unsaid]
    keys = [key for key in changed if EFFECTS[key].is_read(situation)]
    if "schedule.policy" in keys:  # alone it would imply a mode, or no longer do so
        keys = list(dict.fromkeys(("schedule.mode", *keys)))
    taken = {parameter.name for parameter in import_module(COMMANDS[command][0]).command.params}
    flags = {flag.key: flag.option for flag in FLAGS if flag.parameter in taken}
    for key in keys:
        section, _, name = key.partition(".")
        text = written(key, getattr(getattr(wanted, section), name))
        words += [flags[key], text] if key in flags else ["--set", f"{key}={text}"]
    return words


def _of_file(file: Path | None) -> Config | None:
    """What the file alone means; None where it cannot be read again, or means nothing without what was laid over it."""
    from dynbench.config.layers import read_document, validate_config
    from dynbench.errors import UsageError

    if file is None or not file.is_file():
        return None
    try:
        document = read_document(file)
        return validate_config(document.mapping, document, rules=False)
    except UsageError:
        return None
