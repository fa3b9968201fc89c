"""Rows of transformers' flattening collator, as a peer: how one is made, and whether its samples see each other.

`DataCollatorWithFlattening` puts samples side by side and begins positions anew with each. Attention stays
transformers' own, which by default is told of the boundaries by these positions alone: encoders do not look at them,
and causal models only where there is neither a mask nor a cache. So a flattened row is looked at as a packed one is,
and what is seen is recorded, where a packed run would be refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dynbench.errors import UsageError
from dynbench.kernels.leak_check import (
    HALF_TOLERANCE,
    TOLERANCE,
    Pass,
    alone_pass,
    compare,
    evaluating,
    observe,
)
from dynbench.kernels.packed_models import KNOWN, Arguments, Keywords, Model, architecture_of, as_any, pooled
from dynbench.kernels.packed_rows import Boundaries


def flattened_row(samples: Sequence[Sequence[int]], first_position: int = 0) -> dict[str, Tensor]:
    """What the collator gives of the token ids of some samples: `input_ids`, `position_ids`, `labels`, int64 [1, T].

    Args:
        samples: at least one, in the order of the row.
        first_position: of every sample, as the model numbers positions.
    """
    from transformers import DataCollatorWithFlattening

    more = {"position_ids_start": first_position} if first_position else {}  # not known to earlier versions
    make: Any = DataCollatorWithFlattening  # untyped
    collator = make(return_tensors="pt", **more)
    return dict(collator([{"input_ids": list(sample)} for sample in samples]))


def first_position(config: Any) -> int:
    """The number of a sample's first position, for the collator to be told: RoBERTa counts from behind its padding.

    Args:
        config: of transformers, of a model that is known.
    """
    behind = any(known.behind_padding for known in KNOWN.values() if known.name == config.model_type)
    return int(config.pad_token_id) + 1 if behind else 0


def use_flattened_rows(model: Model, *, use_cache: bool = False) -> Model:
    """Make a classifier's head read each sample of a flattened row; attention stays transformers' own.

    The head would read the row's first token alone. It is given each sample's own, by the `boundaries` that come with
    the row, which nothing but the head is told. Changed in place.

    Args:
        model: of transformers, with the head that it is trained with.
        use_cache: a language model makes its cache of keys and values, as its configuration has it where nobody
            switches that off; transformers' Trainer does.

    Raises:
        UsageError: a model whose head is not known.
    """
    known, prepared = architecture_of(model), as_any(model)
    told: list[Boundaries] = []

    def before(_: nn.Module, arguments: Arguments, keywords: Keywords) -> tuple[Arguments, Keywords]:
        told[:] = [keywords["boundaries"]] if "boundaries" in keywords else []
        others = {name: value for name, value in keywords.items() if name != "boundaries"}
        return arguments, {**others, "use_cache": use_cache} if known.causal else others

    prepared.base_model.register_forward_pre_hook(before, with_kwargs=True)
    if known.encoder is not None:
        mean = getattr(prepared.config, "classifier_pooling", "cls") == "mean"
        model.get_submodule(known.encoder).register_forward_hook(lambda *given: pooled(given[-1], told[0], mean=mean))
    return model


def look_at_flattened_rows(
    model: nn.Module, samples: Sequence[Sequence[int]], autocast: torch.dtype | None = None, *, use_cache: bool = False
) -> dict[str, object]:
    """As `check_packed_rows`, of a flattened row: nothing is refused, and what is wrong is among what was seen.

    Args:
        model: of transformers, in fp32 on its device, not prepared yet; it takes flattened rows afterwards.
        samples: token ids of each, at least two; the longest that will come among them.
        autocast: the half precision that training is in, if it is.
        use_cache: as `use_flattened_rows`.

    Returns:
        What was seen, ready for JSON; `leak` says what is wrong, None where nothing is, and differences are those of
        the precision in which it shows, else of fp32.

    Raises:
        UsageError: as `use_flattened_rows`, or fewer than two samples.
    """
    if len(samples) < 2:
        raise UsageError(
            f"look_at_flattened_rows: {len(samples)} of at least 2 samples", "One alone has no other to see."
        )
    device = next(model.parameters()).device
    boundaries = Boundaries(tuple(map(len, samples)), device)
    row = {name: value.to(device) for name, value in flattened_row(samples, first_position(model.config)).items()}
    precisions = {"fp32": None} | ({} if autocast is None else {str(autocast).removeprefix("torch."): autocast})
    with evaluating(model):
        alone = observe(model, alone_pass(model, row["input_ids"], boundaries))
        use_flattened_rows(model, use_cache=use_cache)
        passes = {
            precision: observe(
                model,
                flattened_pass(model, row, boundaries),
                None if dtype is None else torch.autocast(device.type, dtype=dtype),
            )
            for precision, dtype in precisions.items()
        }
    found = {precision: compare(seen, alone, boundaries.lengths) for precision, seen in passes.items()}
    tolerances = {precision: TOLERANCE if dtype is None else HALF_TOLERANCE for precision, dtype in precisions.items()}
    faults = {precision: fault for precision, seen in found.items() if (fault := seen.fault(tolerances[precision]))}
    shown = next(iter(faults), "fp32")
    return {
        "lengths": list(boundaries.lengths),
        "precisions": list(precisions),
        "kernels": {precision: [as_any(model).config._attn_implementation] for precision in precisions},
        "foreign_gradient": found[shown].foreign_gradient,
        "output_difference": found[shown].output_difference,
        "gradient_difference": found[shown].gradient_difference,
        "tolerance": tolerances[shown],
        "leak": f"in {shown}, {faults[shown]}" if faults else None,
    }


def flattened_pass(model: Any, row: dict[str, Tensor], boundaries: Boundaries) -> Pass:
    """A flattened row through a model that was prepared: logits of a classifier, else the states of all tokens."""
    given = {name: row[name] for name in ("input_ids", "position_ids")}
    if not architecture_of(model).causal:
        return lambda: list(model(**given, boundaries=boundaries).logits)
    return lambda: model.base_model(**given).last_hidden_state[0].split(list(boundaries.lengths))
