"""Causal language models: pretrained weights by name or folder, or random ones in a known or stored shape."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, LlamaConfig, PretrainedConfig

from dynbench.config.schema import Workload
from dynbench.errors import UsageError
from dynbench.plugins import WORKLOADS
from dynbench.runs.phrase import Phrase
from dynbench.workloads.first_step import freeze_unused, holds_nothing, set_dropout, trying
from dynbench.workloads.hub import cached_revision, load_stored, local_folder, quiet_libraries
from dynbench.workloads.model_config import EXPECTED, KEY, LANGUAGE_MODEL, make_model, read_config, set_rates
from dynbench.workloads.pretrained_model import (
    ModelSource,
    check_vocabulary,
    check_weights,
    facts_of,
    weights_loader,
)

logger = logging.getLogger(__name__)

WAYS_OUT = "Name a language model (--model gpt2, or a folder), or set workload.weights=random and workload.size=tiny."
GPT2_VOCABULARY, ROPE_VOCABULARY = 50_257, 10_000
GPT2_SHAPES = {"tiny": (128, 4, 4), "gpt2-62m": (640, 6, 10)}
"""Width, layers, heads."""
ROPE_SHAPES = {
    "small": (768, 3072, 12, 12),
    "medium": (1024, 4096, 24, 16),
    "large": (1280, 5120, 36, 20),
    "xl-2025": (1600, 6400, 48, 25),
    "xl-2026": (2560, 10240, 32, 32),
}
"""Width, inner width, layers, heads."""
TRIED_TOKENS = 8
CAUSAL_TOLERANCE = 1e-3
"""Of the logits."""


@dataclass(frozen=True)
class LanguageModel:
    """A model before it is known how many tokens the data have.

    Args:
        settings: the configuration's `workload` section.
        config: of the model; its vocabulary is still to be fitted.
        positions: longest padded sample that it takes, tokens; None for any.
    """

    settings: Workload
    config: PretrainedConfig
    positions: int | None

    def source(self, vocab_size: int) -> ModelSource:
        """The model for data whose token ids are below `vocab_size`.

        Raises:
            UsageError: pretrained weights that know fewer tokens; when it is made, a model whose logits depend on later
                tokens, or weights of another architecture.
        """
        settings, text = self.settings, self.config.get_text_config()
        known = int(getattr(text, "vocab_size", vocab_size))
        if settings.weights == "pretrained":
            check_vocabulary(settings, known, vocab_size)
        else:
            text.vocab_size = max(known, vocab_size)
        name, said, more = self._said()
        make = self._pretrained(name) if settings.weights == "pretrained" else self._random(name)
        facts = facts_of(said, self.config, **more)
        del facts["classes"]
        return ModelSource(self.config, self.positions, facts, make)

    def _said(self) -> tuple[str, Phrase, dict[str, object]]:
        """Its name, where it is from, and what else records keep of that."""
        settings, architecture = self.settings, self.config.model_type
        if not settings.reads_model:
            return settings.shape, Phrase.of("model.language", architecture=architecture, size=settings.shape), {}
        folder = local_folder(KEY, settings.model)
        name = str(folder or settings.model)
        if settings.weights == "random":
            return name, Phrase.of("model.configured", architecture=architecture, name=name), {}
        revision = cached_revision(name) if folder is None else None
        return name, Phrase.of("model.pretrained", name=name), {"revision": revision}

    def _random(self, name: str) -> Callable[[], nn.Module]:
        def make() -> nn.Module:
            model = make_model(self.config, name, WAYS_OUT, LANGUAGE_MODEL).float()
            if self.settings.reads_model:
                fit_for_training(model, name, self.settings.dropout)
            return model

        return make

    def _pretrained(self, name: str) -> Callable[[], nn.Module]:
        def make() -> nn.Module:
            loader = weights_loader(self.config, LANGUAGE_MODEL)
            model, report = load_stored(KEY, name, loader, EXPECTED, WAYS_OUT)
            check_weights(name, report)
            model = model.float()
            fit_for_training(model, name, self.settings.dropout)
            return model

        return make


def language_model(settings: Workload) -> LanguageModel:
    """The model that `workload.weights`, `.model` and `.size` mean, with `workload.dropout` applied.

    Raises:
        DataError: a local folder that holds no configuration.
        HubError: a hub name that is neither cached nor reachable.
    """
    quiet_libraries()
    if settings.reads_model:
        config = read_config(settings.model, WAYS_OUT)
    else:
        config = shape_config(settings.shape, int(WORKLOADS[settings.name].sizes[settings.shape].positions or 0))
    # Padding comes last, where nothing looks at it: no token means it, and the end of a text is one like any other.
    config.get_text_config().pad_token_id = None
    set_rates(config, settings.dropout)
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return LanguageModel(settings, config, positions if isinstance(positions, int) and positions > 0 else None)


def shape_config(shape: str, positions: int) -> PretrainedConfig:
    """The configuration of one of our sizes; `tiny` has as many tokens as the data."""
    common: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    if shape in GPT2_SHAPES:
        width, layers, heads = GPT2_SHAPES[shape]
        vocab_size = 1 if shape == "tiny" else GPT2_VOCABULARY
        sizes: dict[str, Any] = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": positions}
        # GPT-2's own GELU by one kernel, and no dropout of attention, so that neither keeps further copies for the
        # backward pass: a third of the memory of a step.
        lean: dict[str, Any] = {"activation_function": "gelu_pytorch_tanh", "attn_pdrop": 0.0}
        return GPT2Config(vocab_size=vocab_size, tie_word_embeddings=True, **sizes, **lean, **common)
    width, inner, layers, heads = ROPE_SHAPES[shape]
    return LlamaConfig(
        vocab_size=ROPE_VOCABULARY,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        **common,
    )


def fit_for_training(model: nn.Module, name: str, dropout: float | None) -> None:
    """Apply the dropout, try the model on a few tokens, and freeze what gets no gradient.

    Args:
        model: on the CPU, changed in place.
        name: for messages.
        dropout: `workload.dropout`.

    Raises:
        UsageError: it takes no token ids alone, or its logits depend on later tokens.
    """
    set_dropout(model, dropout)
    if holds_nothing(model):
        return
    tokens = torch.arange(TRIED_TOKENS)[None] % int(getattr(model.config, "vocab_size", TRIED_TOKENS))
    with trying(f"{name} cannot be trained on token ids alone", WAYS_OUT):
        with torch.no_grad():
            model.eval()
            whole, half = logits_of(model, tokens), logits_of(model, tokens[:, : TRIED_TOKENS // 2])
        model.train()
        logits = logits_of(model, tokens)
        torch.autograd.backward(F.cross_entropy(logits.flatten(0, 1), tokens.flatten()))
    if (whole[:, : half.shape[1]] - half).abs().max() > CAUSAL_TOLERANCE * half.abs().max():
        raise UsageError(
            f"{KEY}: {name} looks at later tokens to tell the next one: no causal language model", WAYS_OUT
        )
    freeze_unused(model, name)


def logits_of(model: nn.Module, input_ids: Tensor, **more: Any) -> Tensor:
    """Logits of shape [n, L, vocabulary]; half precision is raised to fp32 for the softmax, double stays double."""
    logits: Tensor = model(input_ids=input_ids, **more).logits
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
