"""Programs that load plug-ins: each is a fork of one process, which has imported nothing that plug-ins change.

They are run by `answers` of `test_plugins.py`, and import the package only once they are forked.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click  # noqa: F401
import pydantic  # noqa: F401
import rich  # noqa: F401
import yaml  # noqa: F401


def command(line: str) -> tuple[int, Any]:
    """Exit code and JSON object of a command."""
    from dynbench.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = main(f"{line} --json --results .".split())
    return code, json.loads(said.getvalue())


def classes_beside(*modules: str) -> Any:
    """What is listed where classes stand in the file that registers them, with modules imported before it is read."""
    for name in modules:
        importlib.import_module(f"dynbench.{name}")
    assert "dynbench.config.schema" not in sys.modules
    _, shown = command("plugins")
    from dynbench.plugins import KINDS, STRATEGIES

    assert all(registry["mine"].load() for _, registry in KINDS.values())
    strategy: Any = STRATEGIES["mine"].load()
    assert strategy(None, object()).settings.name == "ddp"
    return [line for line in shown["plugins"] if line["name"] == "mine"]


def configured(*given: str) -> dict[str, Any]:
    """What becomes of settings: which are named as not read, and what heavy was imported to say so, among others."""
    from dynbench.config.layers import load_config
    from dynbench.config.schema import config_digest, dump_config
    from dynbench.config.unread import Use, unread
    from dynbench.plugins.outside import digests

    config = load_config(None, ["launch.launcher=torchrun", "launch.nproc=2", *given])
    written = dump_config(config)
    return {
        "digest": config_digest(config),
        "options": [key for key in ("extra", "other") if key in written],
        "unread": sorted(line.partition(":")[0] for line in unread("train", [Use(config, config, 2)])),
        "heavy": [name for name in ("torch", "numpy", "transformers", "toy_classes") if name in sys.modules],
        "plugins": list(digests().values()),
    }


def answer(name: str, given: Sequence[Any], variables: dict[str, str]) -> None:
    """Print what a program returns."""
    os.environ.update(variables)
    try:
        print(json.dumps(globals()[name](*given)), flush=True)
    except BaseException:
        traceback.print_exc()


if __name__ == "__main__":
    sys.path[0] = ""
    for asked in json.load(sys.stdin):
        child = os.fork()
        if child == 0:
            answer(*asked)
            os._exit(0)
        os.waitpid(child, 0)
