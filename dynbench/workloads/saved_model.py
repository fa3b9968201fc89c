"""A trained model and its tokenizer as transformers saves them, so that its loaders, and ours, read them back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from dynbench.runs.atomic import replacing_folder
from dynbench.workloads.image_side import PREPROCESSOR
from dynbench.workloads.model_config import Kind, make_model
from dynbench.workloads.pretrained_model import ModelSource
from dynbench.workloads.tokenizer import TextTokenizer


def save_model(
    folder: Path,
    source: ModelSource,
    kind: Kind,
    state: Mapping[str, Tensor],
    tokenizer: TextTokenizer | None,
    images: Mapping[str, object] | None = None,
) -> None:
    """Write `folder` anew; what was there stays until the new one is whole.

    Args:
        folder: of config.json, model.safetensors and, with a tokenizer, tokenizer.json.
        source: what the model was made of.
        kind: what it is.
        state: all its parameters and buffers, on the CPU.
        tokenizer: None where tokens were generated.
        images: how images become what the model sees, as preprocessor_config.json says it; None for other samples.

    Raises:
        RuntimeError: the state is that of another model.
        OSError: the disk is full.
    """
    with torch.device("meta"):
        model: Any = make_model(source.config, folder.name, "", kind)
    model.load_state_dict(dict(state), assign=True)
    model.tie_weights()
    with replacing_folder(folder) as partial:
        model.save_pretrained(partial)
        if tokenizer is not None:
            _with_names(tokenizer).save_pretrained(partial)
        if images is not None:
            (partial / PREPROCESSOR).write_text(json.dumps(images, indent=2) + "\n", encoding="utf-8")


def _with_names(tokenizer: TextTokenizer) -> Any:
    """The tokenizer with the names of the tokens that end and pad."""
    names = {"eos_token": tokenizer.end_id, "pad_token": tokenizer.pad_id}
    special = {name: tokenizer.backend.id_to_token(token) for name, token in names.items() if token is not None}
    tokenizer.backend.no_truncation()
    make: Any = transformers.PreTrainedTokenizerFast  # the library leaves it untyped
    return make(tokenizer_object=tokenizer.backend, **special)
