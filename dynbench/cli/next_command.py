"""The next command as a line to paste: on a run's configuration, with what differs from it, quoted for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynbench.runs.run import Run


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
    from dynbench.cli.main import load_command
    from dynbench.cli.options import FLAGS
    from dynbench.config.digest import changed, differences, value_of
    from dynbench.config.layers import replaced_by
    from dynbench.config.typed_text import written

    config = run.config()
    wanted = changed(config, overrides)
    differing = differences(config, wanted)
    taken = {parameter.name for parameter in load_command(command).params}
    flags = {flag.key: flag.option for flag in FLAGS if flag.parameter in taken}
    words = ["-c", str(run.config_file)]
    for key in overrides:
        # Also where the run has the value, but says it in another way: samples per worker for the global batch.
        if key in differing or any(value_of(config, other) is not None for other in replaced_by([key])):
            text = written(key, value_of(wanted, key))
            words += [flags[key], text] if key in flags else ["--set", f"{key}={text}"]
    return words
