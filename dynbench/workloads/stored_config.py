"""A transformers configuration from a local folder or by hub name, with our errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import TypeVar

from transformers import AutoConfig, PretrainedConfig

from dynbench.errors import DataError
from dynbench.workloads.hub import first_line, load_from_hub, local_folder
from dynbench.workloads.model_config import KEY

T = TypeVar("T")


@dataclass(frozen=True)
class StoredConfig:
    """A configuration and where it is from.

    Args:
        config: as stored.
        name: hub name or local folder.
        on_hub: whether `name` is a hub name.
    """

    config: PretrainedConfig
    name: str
    on_hub: bool


def read_config(model: str, ways_out: str) -> StoredConfig:
    """The configuration of `workload.model`; code that a folder brings along is never run.

    Raises:
        DataError: a local folder that holds none.
        HubError: a hub name that is neither cached nor reachable.
    """
    folder = local_folder(KEY, model)
    name = model if folder is None else str(folder)

    def load(local_only: bool) -> PretrainedConfig:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            name, local_files_only=local_only, trust_remote_code=False
        )
        return config

    return StoredConfig(load_stored(name, folder is None, load, ways_out), name, folder is None)


def load_stored(name: str, on_hub: bool, load: Callable[[bool], T], ways_out: str) -> T:
    """`load(local_only)` from the hub or a folder, with our errors.

    Raises:
        DataError: a folder without what is asked for.
        HubError: neither cached nor reachable.
    """
    if on_hub:
        return load_from_hub(KEY, name, load, ways_out)
    try:
        return load(True)
    except MemoryError:
        raise
    except Exception as error:  # a file that is not what it should be fails anywhere in the libraries
        expected = "expected a model saved by transformers (config.json, model.safetensors)"
        reason = "its weights are no PyTorch file" if isinstance(error, UnpicklingError) else first_line(error)
        raise DataError(f"{KEY}: {name}: {expected}: {reason}", ways_out) from error
