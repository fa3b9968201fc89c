"""Loading from a folder, or by hub name: the local cache, then the hub if it answers soon, else an error."""

from __future__ import annotations

import logging
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Literal, TypeVar

from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils.tqdm import disable_progress_bars
from safetensors import SafetensorError

from dynbench.config.paths import means_path
from dynbench.errors import DataError, HubError, UsageError, first_line

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
"""Longest wait for the hub's first answer; its own client would retry for a minute."""

# The client's transport errors descend from the first base (httpx or requests, by version), not from OSError.
LOAD_ERRORS: tuple[type[Exception], ...] = (
    OSError,
    ValueError,
    SafetensorError,
    *HfHubHTTPError.__bases__,
)


def quiet_libraries() -> None:
    """Only errors of transformers and huggingface_hub are shown from here on."""
    import transformers

    for library in ("transformers", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.ERROR)
    disable_progress_bars()
    transformers.logging.disable_progress_bar()


def local_folder(key: str, name: str) -> Path | None:
    """The folder that `name` means, or None where it can only be a hub name.

    Args:
        key: dotted configuration key, for the message.
        name: the value given.

    Raises:
        DataError: written like a path, and no such folder; or a folder with nothing in it.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        if not any(path.iterdir()):
            raise DataError(f"{key}: {name} is an empty folder; expected a model saved by transformers")
        return path
    if path.exists():
        raise DataError(f"{key}: {name} is a file; expected a folder or a hub name")
    if means_path(name):
        raise DataError(f"{key}: {name} does not exist; expected a folder or a hub name")
    return None


def load_stored(key: str, name: str, load: Callable[[str, bool], T], expected: str, ways_out: str) -> T:
    """What transformers saved in a local folder, or keeps under a hub name.

    Args:
        key: dotted configuration key, for messages.
        name: the value given: a folder or a hub name.
        load: loads the object from a folder or by a hub name; its second argument forbids the network.
        expected: what a folder should hold, for messages.
        ways_out: what to do without it.

    Raises:
        DataError: a folder without it.
        HubError, UsageError: as `load_from_hub`.
    """
    folder = local_folder(key, name)
    if folder is None:
        return load_from_hub(key, name, partial(load, name), ways_out)
    try:
        return load(str(folder), True)
    except MemoryError:
        raise
    except Exception as error:  # a file that is not what it should be fails anywhere in the libraries
        reason = "its weights are no PyTorch file" if isinstance(error, UnpicklingError) else first_line(error)
        raise DataError(f"{key}: {folder}: expected {expected}: {reason}", ways_out) from error


def load_from_hub(
    key: str,
    name: str,
    load: Callable[[bool], T],
    ways_out: str,
    *,
    probe_file: str = "config.json",
    repo_type: Literal["model", "dataset"] = "model",
) -> T:
    """`load(True)` from the hub's cache, or `load(False)` when that lacks something and the hub can be reached.

    Args:
        key: dotted configuration key, for messages.
        name: repository on the hub.
        load: loads the object; its argument forbids the network.
        ways_out: what to do without the hub.
        probe_file: a file that every cached copy has.
        repo_type: kind of the repository.

    Raises:
        HubError: not wholly cached, and the hub is switched off, out of reach, or does not have it.
        UsageError: the name cannot be a repository's.
    """
    try:
        cached = isinstance(try_to_load_from_cache(name, probe_file, repo_type=repo_type), str)
    except HFValidationError as error:
        raise UsageError(f"{key}: {name!r} is neither a local folder nor a hub name", ways_out) from error
    missing = f"{key}: {name!r} is not in the hub's cache {constants.HF_HUB_CACHE}"
    if cached:
        try:
            return load(True)
        except LOAD_ERRORS as error:
            logger.debug("cached copy of %s: %s", name, error)
            missing = f"{key}: {name!r} is incomplete in the hub's cache {constants.HF_HUB_CACHE}"
    if constants.HF_HUB_OFFLINE:
        raise HubError(f"{missing}, and HF_HUB_OFFLINE forbids the network", ways_out)
    unreachable = why_unreachable(constants.ENDPOINT, CONNECT_TIMEOUT_S)
    if unreachable:
        raise HubError(f"{missing}, and {constants.ENDPOINT} cannot be reached ({unreachable})", ways_out)
    logger.info("loading %s from %s", name, constants.ENDPOINT)
    try:
        return load(False)
    except LOAD_ERRORS as error:
        raise HubError(
            f"{key}: {name!r} cannot be loaded from {constants.ENDPOINT}: {first_line(error)}", ways_out
        ) from error


def cached_revision(name: str, probe_file: str = "config.json") -> str | None:
    """The commit of the hub's cached copy, or None where there is none."""
    path = try_to_load_from_cache(name, probe_file)
    return Path(path).parent.name if isinstance(path, str) else None


def why_unreachable(endpoint: str, patience_s: float) -> str:
    """Why the hub does not answer within so many seconds; empty when it does, with whatever status."""
    try:
        request = urllib.request.Request(endpoint, method="HEAD")
        urllib.request.urlopen(request, timeout=patience_s).close()
    except urllib.error.HTTPError:
        return ""
    except urllib.error.URLError as error:
        return str(error.reason)
    except OSError as error:
        return first_line(error)
    return ""
