"""The files and folders that a configuration names, looked up on this machine before anything is made."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from dynbench.config.schema import Config
from dynbench.config.unread import model_is_read
from dynbench.plugins import DATASETS, options_of
from dynbench.plugins.datasets import FileOptions

VOCABULARY = ".txt"
"""Ending of a tokenizer that is a WordPiece vocabulary."""
BPE_VOCABULARY = "vocab.json"
"""Ending of one of byte pairs, its merges beside it; every other one is a folder or a hub name."""
TORCH_WEIGHTS = ".pth"
"""Ending of a model that is a file of weights as torchvision publishes them."""
BYTES = "bytes"
"""The tokenizer that reads no file."""


def means_path(name: str) -> bool:
    """Whether a model or tokenizer that is no folder here was still meant as a path, because no hub name looks so."""
    return name.startswith(("/", ".", "~")) or name.endswith("/") or name.count("/") > 1


def path_problems(config: Config) -> list[str]:
    """What is wrong with the paths that training reads, one line each, opening with the dotted key.

    Hub names are not looked up, and no file is opened. What code of the user's own takes its settings for is its own
    affair.
    """
    workload = config.workload
    if workload.runs_own_code:
        return []
    dataset = DATASETS[workload.dataset]
    files = options_of(workload, FileOptions) if dataset.of_files else ()
    tokenizer = None if workload.tokenizer == BYTES else workload.tokenizer
    named = [
        *((key, value, _folder if dataset.folder else _file) for key, value in files),
        ("tokenizer", tokenizer, _tokenizer_or_model),
        ("model", workload.model if model_is_read(config) else None, _tokenizer_or_model),
    ]
    problems: list[str] = []
    for key, value, look in named:
        if value is not None:
            try:
                found = list(look(value, Path(value).expanduser()))
            except (OSError, RuntimeError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                found = [f"cannot be used as a path: {reason}"]
            problems += [f"workload.{key}: {value!r} {problem}" for problem in found]
    return problems


def _file(_: str, path: Path) -> Iterator[str]:
    if path.is_file():
        return
    if path.is_dir():
        yield f"is a folder; expected a file{_holding(path)}"
    elif path.exists():
        yield "is a pipe or a device, and every rank reads it anew; save it as a file"
    else:
        yield f"does not exist{_nearest(path)}"


def _folder(_: str, path: Path) -> Iterator[str]:
    if path.is_file():
        yield f"is a file; expected the folder that holds it, perhaps {str(path.parent)!r}"
    elif not path.is_dir():
        yield f"does not exist{_nearest(path)}"


def _tokenizer_or_model(value: str, path: Path) -> Iterator[str]:
    if value.endswith((VOCABULARY, BPE_VOCABULARY, TORCH_WEIGHTS)):
        yield from _file(value, path)
    elif path.is_dir():
        if not any(path.iterdir()):
            yield "is an empty folder; expected what transformers saves"
    elif path.exists():
        yield f"is a file; expected a folder, perhaps {str(Path(value).parent)!r}, or a hub name"
    elif means_path(value):
        yield f"does not exist{_nearest(path)}"


def _nearest(path: Path) -> str:
    """Where was looked, and the nearest spelling there; of several wrong parts, the first is mended."""
    missing = next(part for part in (*reversed(path.parents), path) if not part.exists())
    folder = missing.parent
    said = f": there is no {missing.name!r} in {folder.resolve()}"
    for name in get_close_matches(missing.name, _names(folder), n=1):
        whole = folder / name / path.relative_to(missing)
        return f"{said}. Did you mean {str(whole if whole.exists() else folder / name)!r}?"
    return said


def _holding(folder: Path, shown: int = 3) -> str:
    names = sorted(name for name in _names(folder) if (folder / name).is_file())
    more = ", …" if len(names) > shown else ""
    return f", it holds {', '.join(map(repr, names[:shown]))}{more}" if names else ""


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]
