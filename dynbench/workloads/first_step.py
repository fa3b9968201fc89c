"""A model of unknown architecture tried on the data's shape, before many ranks wait for what cannot work."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dynbench.errors import UsageError
from dynbench.workloads.hub import first_line
from dynbench.workloads.model_config import KEY

logger = logging.getLogger(__name__)

WAYS_OUT = "Take another architecture, or set workload.size=small."
LONG = 8
"""Tokens of the sample that the gradients are tried on; the one beside it has half."""
PADDING_TOLERANCE = 1e-3
"""Of the logits."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What the data's batches look like.

    Args:
        longest: longest padded sample, tokens.
        vocab_size: token ids are below it.
        pad_id: token id of the padding.
        num_labels: classes.
        end_id: token that ends every sample, where there is one.
        dropout: `workload.dropout`.
    """

    longest: int
    vocab_size: int
    pad_id: int
    num_labels: int
    end_id: int | None
    dropout: float | None

    def batch(self, *lengths: int) -> dict[str, Tensor]:
        """Samples of these lengths, padded: `input_ids` and `attention_mask`, both [n, L]."""
        words = [word for word in range(min(self.vocab_size, 64)) if word not in (self.pad_id, self.end_id)]
        rows = torch.full((len(lengths), max(lengths)), self.pad_id)
        for row, length in zip(rows, lengths, strict=True):
            row[:length] = torch.tensor((words * length)[:length])
            row[length - 1] = row[length - 1] if self.end_id is None else self.end_id
        return {
            "input_ids": rows,
            "attention_mask": (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long(),
        }


def fit_for_training(model: nn.Module, name: str, trial: Trial) -> None:
    """Apply the dropout, find out whether the model takes the data, and freeze what gets no gradient.

    DistributedDataParallel waits for the gradient of every parameter that requires one.

    Args:
        model: on the CPU, changed in place.
        name: for messages.
        trial: the data's shape.

    Raises:
        UsageError: it cannot classify token ids, or which parameters get a gradient depends on the data.
    """
    set_dropout(model, trial.dropout)
    if holds_nothing(model):
        return
    long, short = max(2, min(LONG, trial.longest)), max(2, min(LONG, trial.longest) // 2)
    with trying(f"{name} cannot classify samples of {short} to {trial.longest} token ids", WAYS_OUT):
        with torch.no_grad():
            model.eval()
            _logits(model, trial, trial.longest)
            alone, padded = _logits(model, trial, short)[0], _logits(model, trial, long, short)[1]
            model.train()
            first, again = _logits(model, trial, long, short), _logits(model, trial, long, short)
        logits = _logits(model, trial, long, short)
        torch.autograd.backward(F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long)))
    if trial.dropout == 0 and not torch.equal(first, again):
        logger.warning("%s: two passes differ in spite of workload.dropout 0; so will losses of the same samples", name)
    if (alone - padded).abs().max() > PADDING_TOLERANCE * alone.abs().max():
        logger.warning("%s: padding changes what a sample gives, so that losses depend on who pads how much", name)
    freeze_unused(model, name)


def holds_nothing(model: nn.Module) -> bool:
    """Whether it is on the meta device, where there is nothing to try."""
    return next(model.parameters()).is_meta


@contextmanager
def trying(said: str, ways_out: str) -> Iterator[None]:
    """Inside it a model is tried; whatever it raises but for want of memory is a mistake of the user's.

    Args:
        said: that it cannot do this.
        ways_out: the next step.

    Raises:
        UsageError: it raised something.
    """
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except Exception as error:  # what an architecture does not take, it says in ways of its own
        if "memory" in str(error).lower():
            raise
        raise UsageError(f"{KEY}: {said}: {type(error).__name__}: {first_line(error)}", ways_out) from error


def set_dropout(model: nn.Module, rate: float | None) -> None:
    """Set every dropout that the model makes itself, unless `rate` is None."""
    for module in model.modules():
        if isinstance(module, nn.Dropout) and rate is not None:
            module.p = rate


def _logits(model: nn.Module, trial: Trial, *lengths: int) -> Tensor:
    logits = getattr(model(**trial.batch(*lengths)), "logits", None)
    expected = (len(lengths), trial.num_labels)
    if not isinstance(logits, Tensor) or logits.shape != expected:
        shape = "none" if logits is None else f"of shape {list(logits.shape)}"
        raise UsageError(f"{KEY}: {type(model).__name__} gives logits {shape}; expected {list(expected)}", WAYS_OUT)
    return logits


def freeze_unused(model: nn.Module, name: str) -> None:
    """Freeze what got no gradient in a backward pass, and clear the gradients.

    Raises:
        UsageError: which parameters get one depends on the data.
    """
    unused = {key: part for key, part in model.named_parameters() if part.requires_grad and part.grad is None}
    if any("expert" in key for key in unused):
        raise UsageError(
            f"{KEY}: {name} is a mixture of experts: which of its parameters get a gradient depends on the data, and "
            "data-parallel training needs all of them in every step",
            WAYS_OUT,
        )
    for part in unused.values():
        part.requires_grad_(False)
    if unused:
        logger.info("%s: %d parameters get no gradient and are not trained: %s", name, len(unused), ", ".join(unused))
    model.zero_grad(set_to_none=True)
