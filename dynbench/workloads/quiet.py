"""Keeps the progress bars and advice of the Hugging Face libraries off stderr: rank 0's own log says what matters."""

from __future__ import annotations

import logging

import transformers
from huggingface_hub.utils.tqdm import disable_progress_bars


def quiet_libraries() -> None:
    """Only errors of transformers and huggingface_hub are shown from here on."""
    for library in ("transformers", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.ERROR)
    disable_progress_bars()
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # the library leaves it untyped
