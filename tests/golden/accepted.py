"""What was accepted: `values/NAME.json.xz` and `words/NAME/FILE.txt`; how it differs from what is computed now."""

from __future__ import annotations

import difflib
import json
import lzma
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from .subjects import Golden, computed
from .values import differences

Kind = Literal["values", "words"]
KINDS: tuple[Kind, ...] = ("values", "words")
HERE = Path(__file__).parent


def read_accepted(name: str) -> Golden:
    """What was accepted of a subject; empty where nothing was."""
    file = _values_file(name)
    values = json.loads(lzma.decompress(file.read_bytes())) if file.is_file() else {}
    return Golden(values, {path.stem: path.read_text(encoding="utf-8") for path in sorted(_words(name).glob("*.txt"))})


def accept(kind: Kind, name: str, now: Golden) -> None:
    """Write what there is of a subject now in place of what was accepted; equal values give equal bytes."""
    if kind == "values":
        file = _values_file(name)
        file.parent.mkdir(exist_ok=True)
        file.unlink(missing_ok=True)
        if now.values:
            text = json.dumps(now.values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            file.write_bytes(lzma.compress(text.encode(), preset=9))
        return
    for path in _words(name).glob("*.txt"):
        path.unlink()
    for file_name, text in now.words.items():
        _words(name).mkdir(parents=True, exist_ok=True)
        (_words(name) / f"{file_name}.txt").write_text(text, encoding="utf-8")


def differing(kind: Kind, old: Golden, new: Golden) -> Iterator[str]:
    """Lines that say where two differ; none where they do not."""
    if kind == "values":
        plain: Mapping[str, object] = json.loads(json.dumps(new.values))  # as it is read back: no tuples
        for where, was, now in differences(old.values, plain):
            yield f"{where}: {_short(was)} -> {_short(now)}"
        return
    for name in dict.fromkeys([*old.words, *new.words]):
        was, now = (each.words.get(name, "").splitlines() for each in (old, new))
        yield from difflib.unified_diff(was, now, f"accepted/{name}", f"now/{name}", n=1, lineterm="")


def settle(name: str, kinds: Sequence[Kind], accepting: bool) -> list[str]:
    """Compute a subject, and accept it where that is asked for; the lines that say what differs from before."""
    now, lines = computed(name), []
    for kind in kinds:
        found = list(differing(kind, read_accepted(name), now))
        lines += [f"== {kind} of {name}", *found] if found else []
        if accepting and found:
            accept(kind, name, now)
    return lines


def silent() -> None:
    """Make commands of this process find no terminal, whatever it was started from."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _values_file(name: str) -> Path:
    return HERE / "values" / f"{name}.json.xz"


def _words(name: str) -> Path:
    return HERE / "words" / name
