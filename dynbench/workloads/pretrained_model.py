"""Pretrained weights from a local folder or by hub name."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PretrainedConfig

from dynbench.config.schema import Workload
from dynbench.errors import UsageError
from dynbench.runs.phrase import Phrase
from dynbench.workloads.hub import cached_revision
from dynbench.workloads.model_config import KEY, describe, fit_to_data, usable_positions
from dynbench.workloads.stored_config import load_stored, read_config

logger = logging.getLogger(__name__)

WAYS_OUT = "Name a local folder (--model FOLDER), or use --weights random."

HEAD_PREFIXES = ("pre_classifier.", "classifier.", "score.")
"""Parameters of the classification head, which a model pretrained on plain text does not have."""


@dataclass(frozen=True)
class PretrainedModel:
    """Stored weights; a classification head that they lack is initialised from the seed.

    Args:
        config: the stored configuration, fitted to the data.
        name: hub name or local folder.
        on_hub: whether `name` is a hub name.
        positions: longest padded sample, tokens.
    """

    config: PretrainedConfig
    name: str
    on_hub: bool
    positions: int | None

    @classmethod
    def find(cls, settings: Workload, vocab_size: int, pad_id: int, num_labels: int) -> PretrainedModel:
        """The model of `workload.model`; only its configuration is read.

        Raises:
            DataError: a local folder that holds no model.
            HubError: a hub name that is neither cached nor reachable.
            UsageError: no text encoder, or one whose vocabulary is smaller than the data's.
        """
        name, stored = settings.model, read_config(settings.model, WAYS_OUT)
        config = stored.config
        if not hasattr(config, "vocab_size") or not hasattr(config, "max_position_embeddings"):
            raise UsageError(f"{KEY}: {name} ({config.model_type}) is no text encoder", WAYS_OUT)
        if config.vocab_size < vocab_size:
            raise UsageError(
                f"{KEY}: {name} knows {config.vocab_size} tokens, the data have {vocab_size}",
                "Use the model's own tokenizer (workload.tokenizer: null)."
                if settings.tokenizer is not None
                else f"Use a model that knows {vocab_size} tokens or more, or --weights random.",
            )
        fit_to_data(config, num_labels, pad_id, settings.dropout)
        return cls(config, stored.name, stored.on_hub, usable_positions(config, name, WAYS_OUT))

    @property
    def facts(self) -> dict[str, object]:
        """Source, hub revision and shape."""
        revision = cached_revision(self.name) if self.on_hub else None
        source = Phrase(f"pretrained {self.name}", "model.pretrained", name=self.name)
        return {"source": source, "said": source.record(), "revision": revision, **describe(self.config)}

    def build(self, seed: int) -> nn.Module:
        """The model with its weights loaded; the caller's random state is left as it was.

        Raises:
            DataError: a local folder without usable weights.
            HubError: weights neither cached nor reachable.
            UsageError: weights of another architecture.
        """
        from transformers import AutoModelForSequenceClassification

        def load(local_only: bool) -> tuple[nn.Module, dict[str, set[object]]]:
            model, report = AutoModelForSequenceClassification.from_pretrained(
                self.name,
                config=self.config,
                local_files_only=local_only,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
            return model, report

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, report = load_stored(self.name, self.on_hub, load, WAYS_OUT)
        self._check_fit(report)
        return model.float().train()

    def _check_fit(self, report: dict[str, set[object]]) -> None:
        """Only a classification head may be missing or of another shape."""
        mismatched = (entry[0] if isinstance(entry, tuple) else entry for entry in report["mismatched_keys"])
        fresh = sorted(str(key) for key in {*report["missing_keys"], *mismatched})
        body = [key for key in fresh if not key.startswith(HEAD_PREFIXES)]
        if body:
            raise UsageError(
                f"{KEY}: the weights of {self.name} do not fit its configuration: {len(body)} parameters are missing "
                f"or of another shape, {body[0]} first",
                WAYS_OUT,
            )
        if fresh:
            logger.info("the classification head of %s starts from random weights", self.name)
