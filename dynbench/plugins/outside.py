"""Plug-ins from outside dynbench, loaded once in every process.

They are the files and modules of `DYNBENCH_PLUGINS`, and the modules that installed packages declare as entry points of
the group `dynbench.plugins`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points

from dynbench.errors import DynbenchError, UsageError
from dynbench.plugins.code import Code, content_digest, find_code, own_folders

VARIABLE = "DYNBENCH_PLUGINS"
GROUP = "dynbench.plugins"
targets: list[object] = []
"""Those of all entries, in the order of registration."""
_loading = False


def load_all() -> None:
    """Import them, so that they register themselves.

    Raises:
        UsageError: a file that is not there, or whose code raised an error.
    """
    global _loading
    if _loading:  # the files read the registries that they add to
        return
    _loading = True
    try:
        found = _load_once()
    finally:
        _loading = False
    if isinstance(found, UsageError):
        raise found


def digests() -> dict[str, str]:
    """Module or file name of each to a digest of it and of the modules that its entries name."""
    load_all()
    found = _load_once()
    return {} if isinstance(found, UsageError) else {code.module or code.file.name: code.digest for code in found}


def or_your_own() -> str:
    """What follows the names that are known where the variable names no file: how to add one's own."""
    return "" if os.environ.get(VARIABLE) else f"; a plug-in of your own: name its file in {VARIABLE}"


def where(error: BaseException) -> str | None:
    """`file.py:12` of the innermost line of plug-ins from outside that an error passed; None where it passed none."""
    found = () if _loading else _load_once()
    places = [] if isinstance(found, UsageError) else [code.where(error) for code in found]
    return next(filter(None, places), None)


@cache
def _load_once() -> tuple[Code, ...] | UsageError:
    """The files in order, or why one of them cannot be used: what registered itself cannot do so again."""
    named = dict.fromkeys(filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))), VARIABLE)
    for point in entry_points(group=GROUP):
        named.setdefault(point.value, f"entry point {point.name} of {GROUP}")
    try:
        return tuple(_load(key, place) for place, key in named.items())
    except UsageError as error:
        return error


def _load(key: str, named: str) -> Code:
    code = find_code(key, named, own_folders(), "give its whole path")
    before = len(targets)
    try:
        code.load()
    except DynbenchError as error:
        raise UsageError(f"{key}: {code.where(error) or code.file.name}: {error.message}", error.hint) from error
    except Exception as error:  # the user's own code, which may raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"{key}: {code.where(error) or code.file.name}: {type(error).__name__}: {reason}",
            f"Mend that line, or leave the file out of {VARIABLE}."
            if key == VARIABLE
            else "Mend that line, or uninstall its package.",
        ) from error
    return replace(code, digest=content_digest(b"".join(_contents(code, targets[before:]))))


def _contents(code: Code, registered: Sequence[object]) -> Iterator[bytes]:
    """Of a file and of the modules that its entries name; one that is not there is reported when it is used."""
    yield code.file.read_bytes()
    for module in dict.fromkeys(target.partition(":")[0] for target in registered if isinstance(target, str)):
        with suppress(UsageError):
            file = find_code(VARIABLE, module, [code.file.parent, code.folder], "").file
            if code.holds(str(file)) and file != code.file:
                yield file.read_bytes()
