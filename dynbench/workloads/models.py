"""Models of transformers: their configuration by its own names for things, their weights, and how they are saved."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig

from dynbench.config.schema import Workload
from dynbench.errors import UsageError, first_line
from dynbench.runs.atomic import replacing_folder
from dynbench.runs.phrase import Phrase
from dynbench.workloads.base import Rows
from dynbench.workloads.datasets.images import PREPROCESSOR
from dynbench.workloads.hub import cached_revision, load_stored, local_folder
from dynbench.workloads.tokenizer import TextTokenizer

logger = logging.getLogger(__name__)

KEY = "workload.model"
EXPECTED = "a model saved by transformers (config.json, model.safetensors)"
OTHER_ARCHITECTURE = "Take another architecture, or set workload.size=small."
OTHER_HEADS = "qa_"
"""How the names of settings begin that a classifier does not read."""
NAMED = 6
"""Parameters that messages name."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a model is to be.

    Args:
        name: for messages.
        auto: the class of transformers that makes it of a configuration.
        heads: how the names of parameters begin that stored weights may lack, or have in another shape.
    """

    name: str
    auto: str
    heads: tuple[str, ...] = ()

    def auto_class(self) -> Any:
        """That class; importing it takes half a second, and only some models need it."""
        return getattr(import_module("transformers"), self.auto)


TEXT_HEADS = ("pre_classifier.", "classifier.", "score.")
CLASSIFIER = Kind("text classifier", "AutoModelForSequenceClassification", TEXT_HEADS)
LANGUAGE_MODEL = Kind("causal language model", "AutoModelForCausalLM")
IMAGE_CLASSIFIER = Kind("image classifier", "AutoModelForImageClassification", ("classifier.",))


@dataclass(frozen=True)
class ModelSource:
    """Where a workload's model comes from.

    Args:
        config: its configuration, fitted to the data.
        positions: longest padded sample that it takes, tokens; None for any.
        facts: source and shape, ready for JSON; see `facts_of`.
        make: the model on torch's default device, what is random in it from its random state; raises what its maker
            says.
    """

    config: PretrainedConfig
    positions: int | None
    facts: dict[str, object]
    make: Callable[[], nn.Module]

    def build(self, seed: int) -> nn.Module:
        """The model in fp32 and training mode; equal seeds give equal weights, the caller's random state stays."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make().float().train()

    def build_empty(self) -> nn.Module:
        """The same on the meta device, without values; makers read none there, and try nothing."""
        with torch.device("meta"):
            return self.make().float().train()


class BuildsModel:
    """What workloads with a model of transformers share: how it is built, padded, for rows, or without values."""

    _source: ModelSource
    rows: Rows | None = None

    def build_model(self, seed: int) -> nn.Module:
        """The model on the CPU in fp32, in training mode; equal seeds give equal weights on every rank."""
        return self._prepared(self.build_padded_model(seed))

    def build_padded_model(self, seed: int) -> nn.Module:
        """The same, before it is made to take rows without padding."""
        return self._source.build(seed)

    def build_empty_model(self) -> nn.Module:
        """As `build_model`, without values, on the meta device."""
        return self._prepared(self._source.build_empty())

    def _prepared(self, model: nn.Module) -> nn.Module:
        return model if self.rows is None else self.rows.prepare(model)


@dataclass(frozen=True)
class StoredModel:
    """`workload.model`, of which the configuration is read: its shape is taken, or its weights too.

    Args:
        settings: the configuration's `workload` section.
        kind: what it is to be.
        ways_out: the hint of errors.
        config: its configuration.
        folder: where it lies; None where it is of the hub.
    """

    settings: Workload
    kind: Kind
    ways_out: str
    config: PretrainedConfig
    folder: Path | None

    @property
    def name(self) -> str:
        """For messages."""
        return str(self.folder or self.settings.model)

    def facts(self) -> dict[str, object]:
        """See `facts_of`; with the hub's revision of weights, and a digest of a folder's configuration."""
        if self.settings.weights == "pretrained":
            revision = None if self.folder is not None else cached_revision(self.name)
            return facts_of(Phrase.of("model.pretrained", name=self.name), self.config, revision=revision)
        stored = None if self.folder is None else (self.folder / "config.json").read_bytes()
        digest = None if stored is None else hashlib.sha256(stored).hexdigest()[:16]
        phrase = Phrase.of("model.configured", architecture=self.config.model_type, name=self.name)
        return facts_of(phrase, self.config, digest=digest)

    def make(self) -> nn.Module:
        """The model in fp32; of stored weights only the head may be missing or of another shape, which is random then.

        On the meta device no weights are read.

        Raises:
            DataError, HubError: as `load_stored`.
            UsageError: as `make_model`; weights of another architecture.
        """
        if self.settings.weights != "pretrained" or torch.empty(0).is_meta:
            return make_model(self.config, self.name, self.ways_out, self.kind).float()
        model, report = load_stored(KEY, self.name, self._load, EXPECTED, self.ways_out)
        mismatched = (entry[0] if isinstance(entry, tuple) else entry for entry in report["mismatched_keys"])
        fresh = sorted(str(key) for key in {*report["missing_keys"], *mismatched})
        if body := [key for key in fresh if not key.startswith(self.kind.heads)]:
            raise UsageError(
                f"{KEY}: the weights of {self.name} do not fit its configuration: {len(body)} parameters are missing "
                f"or of another shape, {body[0]} first",
                self.ways_out,
            )
        if fresh:
            logger.info("%s: the head starts from random weights: %s", self.name, shortened(fresh))
        return model.float()

    def check_vocabulary(self, known: int, vocab_size: int) -> None:
        """Refuse data with token ids that the model has no embedding for.

        Args:
            known: the model's vocabulary.
            vocab_size: token ids of the data are below it.

        Raises:
            UsageError: they are more.
        """
        if known < vocab_size:
            raise UsageError(
                f"{KEY}: {self.settings.model} knows {known} tokens, the data have {vocab_size}",
                "Use the model's own tokenizer (workload.tokenizer: null)."
                if self.settings.tokenizer is not None
                else f"Use a model that knows {vocab_size} tokens or more, or --weights random.",
            )

    def _load(self, where: str, local_only: bool) -> tuple[nn.Module, dict[str, set[object]]]:
        model, report = self.kind.auto_class().from_pretrained(
            where,
            config=self.config,
            local_files_only=local_only,
            trust_remote_code=False,
            weights_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        return model, report


def stored_model(settings: Workload, kind: Kind, ways_out: str) -> StoredModel:
    """What `workload.model` names; code that a folder brings along is never run.

    Raises:
        DataError: a local folder that holds none.
        HubError: a hub name that is neither cached nor reachable.
    """
    config = read_config(settings.model, ways_out)
    return StoredModel(settings, kind, ways_out, config, local_folder(KEY, settings.model))


def read_config(model: str, ways_out: str) -> PretrainedConfig:
    """The configuration of `workload.model`; code that a folder brings along is never run.

    Raises:
        DataError: a local folder that holds none.
        HubError: a hub name that is neither cached nor reachable.
    """

    def load(where: str, local_only: bool) -> PretrainedConfig:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            where, local_files_only=local_only, trust_remote_code=False
        )
        return config

    return load_stored(KEY, model, load, EXPECTED, ways_out)


def shortened(names: Sequence[str]) -> str:
    """The first of some parameters' names."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def name_classes(config: PretrainedConfig, names: Sequence[str]) -> None:
    """Keep the names of the classes, in order, in a configuration."""
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}


def set_rates(config: PretrainedConfig, dropout: float | None) -> None:
    """Set every dropout probability unless `dropout` is None; what is of no use in training is switched off.

    Args:
        config: changed in place.
        dropout: `workload.dropout`.
    """
    if getattr(config, "use_cache", False):
        config.use_cache = False
    for key, rate in _rates(config, layers=True).items():
        if rate:
            logger.warning("%s: %s skips whole layers, which would have no gradient; it is set to 0", key, rate)
            setattr(config, key, 0.0)
    for key in dropouts(config) if dropout is not None else ():
        setattr(config, key, dropout)


def dropouts(config: PretrainedConfig) -> dict[str, float | None]:
    """The dropout probabilities by their name in the configuration; None where another one holds."""
    return _rates(config, layers=False)


def make_model(config: PretrainedConfig, name: str, ways_out: str, kind: Kind = CLASSIFIER) -> nn.Module:
    """A model of this configuration, with weights from torch's random state, on its default device.

    Args:
        config: of any architecture.
        name: where it is from, for messages.
        ways_out: the hint of the error.
        kind: what it is to be.

    Raises:
        UsageError: there is no such model, or the configuration contradicts itself.
    """
    with trying(f"{name} ({config.model_type}) makes no {kind.name}", ways_out):
        model: nn.Module = kind.auto_class().from_config(config, trust_remote_code=False)
    return model


def facts_of(source: Phrase, config: PretrainedConfig, **more: object) -> dict[str, object]:
    """What records say of a model: its source, what else is known of that, and its shape."""
    return {"source": source, "said": source.record(), **more, **_shape(config)}


def _shape(config: PretrainedConfig) -> dict[str, object]:
    """Shape of the model, ready for JSON; None for what its architecture does not have."""
    text = config.get_text_config()
    return {
        "architecture": config.model_type,
        "layers": getattr(text, "num_hidden_layers", None),
        "dim": getattr(text, "hidden_size", None),
        "heads": getattr(text, "num_attention_heads", None),
        "vocab_size": getattr(text, "vocab_size", None),
        "positions": getattr(text, "max_position_embeddings", None),
        "classes": config.num_labels,
        "dropout": dropouts(config),
    }


def _rates(config: PretrainedConfig, *, layers: bool) -> dict[str, float | None]:
    """Probabilities of dropping: of whole layers, or of single values."""
    return {
        key: value
        for key, value in config.to_dict().items()
        if "drop" in key
        and not key.startswith(OTHER_HEADS)
        and (value is None or (isinstance(value, int | float) and not isinstance(value, bool)))
        and layers is ("layerdrop" in key or "layer_drop" in key or "drop_path" in key)
    }


@contextmanager
def trying(problem: str, ways_out: str) -> Iterator[None]:
    """Inside it a model is tried; whatever it raises but for want of memory is a mistake of the user's.

    Args:
        problem: that it cannot do this.
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
        raise UsageError(f"{KEY}: {problem}: {type(error).__name__}: {first_line(error)}", ways_out) from error


def fit_for_training(
    model: nn.Module, name: str, loss: Callable[[], Tensor], cannot: str, ways_out: str, dropout: float | None = None
) -> nn.Module:
    """The model, once a backward pass has worked; what got no gradient in it is frozen.

    DistributedDataParallel waits for the gradient of every parameter that requires one. On the meta device, where there
    is nothing to try, only the dropout is set.

    Args:
        model: on the CPU, changed in place.
        name: for messages.
        loss: of a few samples, from the model in training mode; checks what else is wanted of it on the way.
        cannot: what it cannot do where that fails, for messages.
        ways_out: the hint of the error.
        dropout: of every dropout that the model makes itself; None leaves them.

    Raises:
        UsageError: it cannot be trained so, or which parameters get a gradient depends on the data.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout) and dropout is not None:
            module.p = dropout
    if next(model.parameters()).is_meta:
        return model
    with trying(f"{name} cannot {cannot}", ways_out):
        torch.autograd.backward(loss())
    unused = {key: part for key, part in model.named_parameters() if part.requires_grad and part.grad is None}
    if any("expert" in key for key in unused):
        raise UsageError(
            f"{KEY}: {name} is a mixture of experts: which of its parameters get a gradient depends on the data, and "
            "data-parallel training needs all of them in every step",
            OTHER_ARCHITECTURE,
        )
    for part in unused.values():
        part.requires_grad_(False)
    if unused:
        logger.info("%s: %d parameters get no gradient and are not trained: %s", name, len(unused), ", ".join(unused))
    model.zero_grad(set_to_none=True)
    return model


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
