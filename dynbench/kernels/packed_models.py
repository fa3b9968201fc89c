"""The models that are known to be right on packed rows, and what is changed in one so that it takes rows.

Rows are ours, with attention that keeps samples apart, or those of transformers' flattening collator, as a peer:
`DataCollatorWithFlattening` puts samples side by side and begins positions anew with each. Attention stays
transformers' own then, which by default finds the boundaries by these positions alone: encoders do not look at them,
and causal models only where there is neither a mask nor a cache.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from dynbench.errors import UsageError
from dynbench.kernels.packed_attention import ATTENTION, Boundaries, register

Model = TypeVar("Model", bound=nn.Module)
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]
UNKNOWN_PARTS = ("is_decoder", "add_cross_attention", "chunk_size_feed_forward")
"""Settings that make of a known architecture another."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What differs between the models that are known.

    Args:
        name: as configurations name it.
        encoder: part of a classifier whose output the head reads; None of a causal language model.
        behind_padding: positions are counted from behind the number of the padding's token, as RoBERTa does, which
            leaves out that token wherever it stands.
    """

    name: str
    encoder: str | None
    behind_padding: bool = False

    @property
    def causal(self) -> bool:
        """Whether it tells every token's next one; else it classifies."""
        return self.encoder is None


KNOWN: dict[str, Architecture] = {
    "DistilBertForSequenceClassification": Architecture("distilbert", "distilbert.transformer"),
    "BertForSequenceClassification": Architecture("bert", "bert.encoder"),
    "RobertaForSequenceClassification": Architecture("roberta", "roberta.encoder", behind_padding=True),
    "ModernBertForSequenceClassification": Architecture("modernbert", "model"),
    "GPT2LMHeadModel": Architecture("gpt2", None),
    "LlamaForCausalLM": Architecture("llama", None),
}
"""By the class that transformers makes."""


def architecture_of(model: nn.Module) -> Architecture:
    """What is known of a model.

    Raises:
        UsageError: nothing is.
    """
    name, config = type(model).__name__, getattr(model, "config", None)
    if name not in KNOWN:
        raise UsageError(
            f"{name} is not among the models that are known to be right on packed rows", f"Take {', '.join(KNOWN)}."
        )
    problem = unknown_architecture(config, causal=KNOWN[name].causal)
    if problem is not None:
        raise UsageError(f"{name}: {problem}", "Pad its batches.")
    return KNOWN[name]


def unknown_architecture(config: Any, *, causal: bool) -> str | None:
    """Why the model of a configuration of transformers is not known to be right on packed rows; None where it is.

    Args:
        config: of transformers.
        causal: it is to be a causal language model; else a classifier.
    """
    fitting = [known.name for known in KNOWN.values() if known.causal is causal]
    if config.model_type not in fitting:
        kind = "language models" if causal else "classifiers"
        return f"of {kind}, packed rows are known to be right for {', '.join(fitting)}, not for {config.model_type}"
    odd = {key: value for key in UNKNOWN_PARTS if (value := getattr(config, key, None))}
    return f"packed rows do not know {', '.join(f'{key} {value}' for key, value in odd.items())}" if odd else None


def use_packed_rows(model: Model) -> Model:
    """Make a model take packed rows, and nothing else: `model(input_ids=…, boundaries=…)`.

    Its attention keeps to the boundaries, positions begin anew with every sample, and a classifier's head reads each
    sample's own token (or the mean over its tokens), so that logits are [n, classes]. Changed in place; its
    configuration is a copy from then on, which other models do not share.

    Args:
        model: of transformers, with the head that it is trained with.

    Raises:
        UsageError: a model that is not known to be right on packed rows.
    """
    known, prepared = architecture_of(model), as_any(model)
    if prepared.config._attn_implementation == ATTENTION:
        return model
    register()
    _own_configuration(model)
    prepared.set_attn_implementation(ATTENTION)
    before = _of_a_row(type(model).__name__, known, prepared.config.pad_token_id)
    prepared.base_model.register_forward_pre_hook(before, with_kwargs=True)
    _pool_samples(model, known, lambda keywords: keywords["boundaries"])
    return model


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
    """The number of a sample's first position in the model of a known configuration: RoBERTa's follow its padding's."""
    behind = any(known.behind_padding for known in KNOWN.values() if known.name == config.model_type)
    return int(config.pad_token_id) + 1 if behind else 0


def use_flattened_rows(model: Model, *, use_cache: bool = False) -> Model:
    """Make a classifier's head read each sample of a flattened row; attention stays transformers' own.

    The head would read the row's first token alone. It is given each sample's own, by the `boundaries` that come with
    the row, which only the head sees. Changed in place.

    Args:
        model: of transformers, with the head that it is trained with.
        use_cache: a language model makes its cache of keys and values, as its configuration has it where nobody
            switches that off; transformers' Trainer does.

    Raises:
        UsageError: a model whose head is not known.
    """
    known = architecture_of(model)
    current: list[Boundaries] = []

    def before(_: nn.Module, arguments: Arguments, keywords: Keywords) -> tuple[Arguments, Keywords]:
        others = dict(keywords)
        current[:] = [others.pop("boundaries")] if "boundaries" in others else []
        return arguments, {**others, "use_cache": use_cache} if known.causal else others

    as_any(model).base_model.register_forward_pre_hook(before, with_kwargs=True)
    _pool_samples(model, known, lambda _: current[0])
    return model


def as_any(model: Any) -> Any:
    """Transformers' models have more than torch's stubs know."""
    return model


def _own_configuration(model: nn.Module) -> None:
    """Give the parts of a model that share a configuration a copy of it."""
    shared = model.config
    own: Any = copy.deepcopy(shared)
    for part in model.modules():
        if getattr(part, "config", None) is shared:
            part.config = own


def _of_a_row(name: str, known: Architecture, pad_id: int | None) -> Callable[[nn.Module, Arguments, Keywords], Any]:
    """Before a forward pass: positions of the row's samples, and no cache, in which they would meet."""
    behind = pad_id if known.behind_padding else None

    def before(_: nn.Module, arguments: Arguments, keywords: Keywords) -> tuple[Arguments, Keywords]:
        boundaries = keywords.get("boundaries")
        if not isinstance(boundaries, Boundaries):
            raise UsageError(
                f"{name}: a model for packed rows was called without boundaries",
                "Make batches with PackedCollator; for padded ones take a model of its own.",
            )
        if keywords.get("attention_mask") is not None:
            raise UsageError(f"{name}: a packed row came with an attention mask", "Leave it out: nothing is padded.")
        given = next(value for value in (*arguments, *keywords.values()) if isinstance(value, Tensor))
        if given.shape[:2] != (1, boundaries.tokens):
            came = " x ".join(map(str, given.shape[:2]))
            raise UsageError(
                f"{name}: boundaries of {boundaries.tokens} tokens came with {came} tokens",
                "Give input_ids of shape [1, tokens] and the boundaries of the same row.",
            )
        boundaries = boundaries.to(given.device)
        places = boundaries.positions
        if behind is not None:
            places = behind + (places + 1 if given.is_floating_point() else _counted(given[0] != behind, boundaries))
        more: Keywords = {"boundaries": boundaries, "position_ids": places[None]}
        if known.causal:
            more["use_cache"] = False
        return arguments, {**keywords, **more}

    return before


def _counted(counts: Tensor, boundaries: Boundaries) -> Tensor:
    """How many tokens of its sample count up to each one, 0 for those that do not, int64 [T], of bool [T]."""
    total = counts.long().cumsum(0)
    before = (total - counts.long())[boundaries.starts]
    return (total - before[boundaries.sample]) * counts


def _pool_samples(model: nn.Module, known: Architecture, boundaries_of: Callable[[Keywords], Boundaries]) -> None:
    """Give a classifier's head one state of each sample: what its encoder gives of a row, as if of n rows.

    Args:
        model: changed in place; nothing is done to a language model.
        known: its architecture.
        boundaries_of: those of the row, given the keyword arguments of the encoder.
    """
    if known.encoder is None:
        return
    mean = getattr(model.config, "classifier_pooling", "cls") == "mean"

    def after(_: nn.Module, __: Arguments, keywords: Keywords, output: Any) -> Any:
        boundaries, states = boundaries_of(keywords), output.last_hidden_state[0]
        if mean:
            sums = states.new_zeros(len(boundaries.lengths), states.shape[1]).index_add(0, boundaries.sample, states)
            pooled = sums / boundaries.offsets.diff()[:, None]
        else:
            pooled = states[boundaries.starts]
        output.last_hidden_state = pooled[:, None]
        return output

    model.get_submodule(known.encoder).register_forward_hook(after, with_kwargs=True)
