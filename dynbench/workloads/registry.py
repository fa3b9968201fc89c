"""The workload of a configuration: one of the registry, or a class of the user's own.

The latter is loaded, checked against the protocol, and what its code raises is placed in its file.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynbench.config import schema
from dynbench.config.schema import Config
from dynbench.errors import DynbenchError, UsageError, WorkerFailed
from dynbench.plugins import WORKLOADS
from dynbench.plugins.outside import content_digest
from dynbench.runs.phrase import Phrase
from dynbench.workloads.base import Workload
from dynbench.workloads.data import IntArray, TokenisedData
from dynbench.workloads.own_code import KEY, PROTOCOL, OwnCode, find_own_code, registered_code
from dynbench.workloads.token_loss import check_sums

METHODS = {
    "build_model": "build_model(self, seed)",
    "collate": "collate(self, data, ids, width)",
    "loss": "loss(self, model, batch)",
}
"""Methods that every workload has, and how they are called."""
EVAL_SUMS = {"eval_sums": "eval_sums(self, model, batch)"}


class OwnWorkload:
    """A class of the user's own behind the protocol of `Workload`.

    Args:
        config: the configuration.
        code: where it is.
        factory: the class where it is known; None loads it.

    Raises:
        UsageError: it cannot be found, or does not follow the protocol.
        WorkerFailed: its own code raised an error; the message names the line.
        DynbenchError: what dynbench's loaders raise when its code calls them.
    """

    def __init__(self, config: Config, code: OwnCode, factory: Callable[..., object] | None = None) -> None:
        self._code = code
        with _placed(code):
            factory = factory or getattr(code.load(), code.attribute, None)
        if not callable(factory):
            raise UsageError(f"{KEY}: {code.file} has no class {code.attribute}", PROTOCOL)
        self._check_call(factory, "__init__(self, config)", config)
        with _placed(code):
            self._theirs: Any = factory(config)
        self.train: TokenisedData = getattr(self._theirs, "train", None)  # type: ignore[assignment]  # checked below
        self.eval: TokenisedData | None = getattr(self._theirs, "eval", None)
        self.positions: int | None = getattr(self._theirs, "positions", None)
        self._device = torch.device("cuda" if config.launch.device == "cuda" else "cpu")
        self._check_methods()
        self._check_values()
        self.facts = self._describe()

    def build_model(self, seed: int) -> nn.Module:
        """Theirs, under `seed` whether they look at it or not; the caller's random state is left as it was.

        Raises:
            UsageError: no model to train, or its losses do not add up over samples.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self._theirs.build_model(seed)
            if not isinstance(model, nn.Module):
                raise self._wrong("build_model", model, "a torch.nn.Module")
            if not any(parameter.requires_grad for parameter in model.parameters()):
                raise self._error("build_model gave a model with nothing to train")
            check_sums(self, model, f"{KEY}: {self._code.name}", self._device)
        return model.train()

    def collate(self, data: TokenisedData, ids: IntArray, width: int) -> dict[str, Tensor]:
        """Theirs, refused where it is not a mapping of CPU tensors of n samples."""
        batch = self._theirs.collate(data, ids, width)
        if not isinstance(batch, dict) or not batch:
            raise self._wrong("collate", batch, "a dict of tensors")
        for key, value in batch.items():
            if not isinstance(value, Tensor) or value.device.type != "cpu" or value.shape[:1] != (len(ids),):
                raise self._wrong(f"collate (key {key!r})", value, f"a CPU tensor of {len(ids)} samples")
        return batch

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Theirs, refused where it is not one number with a gradient."""
        loss = self._theirs.loss(model, batch)
        if not isinstance(loss, Tensor) or loss.ndim != 0:
            raise self._wrong("loss", loss, "a scalar tensor, the sum over the batch's samples")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise self._error("loss has no gradient; compute it from the model")
        return loss

    def eval_sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        """Theirs, refused without `loss_sum`; `correct` and `tokens` are theirs to leave out."""
        sums = self._theirs.eval_sums(model, batch)
        if not isinstance(sums, dict) or not {"loss_sum"} <= set(sums) <= {"loss_sum", "correct", "tokens"}:
            found = f" of {', '.join(map(str, sums))}" if isinstance(sums, dict) else ""
            expected = "a dict of loss_sum, and correct or tokens where there is an accuracy or a perplexity"
            raise self._wrong("eval_sums", sums, expected, found)
        return {key: float(value) for key, value in sums.items()}

    def _check_methods(self) -> None:
        wanted = METHODS if self.eval is None else METHODS | EVAL_SUMS
        missing = [call for method, call in wanted.items() if not callable(getattr(self._theirs, method, None))]
        if missing:
            raise self._error(f"lacks {', '.join(missing)}")
        for method, call in wanted.items():
            self._check_call(getattr(self._theirs, method), call, *(None for _ in call.split(",")[1:]))

    def _check_call(self, function: Callable[..., object], call: str, *arguments: object) -> None:
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # of a class written in C nothing is known
            return
        try:
            signature.bind(*arguments)
        except TypeError:
            name, expected = call.partition("(")[0], call.replace("self, ", "")
            raise self._error(f"{name}{signature}; expected {expected}") from None

    def _check_values(self) -> None:
        limit: object = self.positions
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
            raise self._wrong("positions", limit, "a whole number of tokens, or None")
        for key, data in {"train": self.train, **({} if self.eval is None else {"eval": self.eval})}.items():
            if not isinstance(data, TokenisedData):
                raise self._wrong(key, data, "a TokenisedData of dynbench.workloads.data")
            if not len(data):
                raise self._error(f"{key} holds no sample")
            if data.weights is not None and not data.weights.any():
                raise self._error(f"{key} has a weight of 0 for every sample")
            if self.positions is not None and (longest := int(data.lengths.max())) > self.positions:
                raise self._error(
                    f"{key} has a sample of {longest} tokens, beyond its positions, {self.positions}",
                    f"Cut the samples: {key}.truncate({self.positions}), before they are weighed.",
                )

    def _describe(self) -> dict[str, object]:
        theirs = getattr(self._theirs, "facts", {})
        try:
            facts = json.loads(json.dumps(theirs, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise self._error(f"facts cannot be written as JSON: {error}") from None
        if not isinstance(facts, dict):
            raise self._wrong("facts", theirs, "a dict")
        source = Phrase.of("model.own", name=self._code.name)
        return {
            "model": {"source": source, "said": source.record()},
            **facts,
            "fingerprint": self.train.fingerprint,
            "train": self.train.describe(),
            "eval": None if self.eval is None else self.eval.describe(),
            "workload": {"name": self._code.name, "digest": self._code.digest, "beside": _beside(self._code)},
        }

    def _wrong(self, what: str, value: object, expected: str, details: str = "") -> UsageError:
        shape = f" of shape {list(value.shape)} on {value.device.type}" if isinstance(value, Tensor) else details
        return self._error(f"{what} is a {type(value).__name__}{shape}; expected {expected}")

    def _error(self, problem: str, hint: str = PROTOCOL) -> UsageError:
        return UsageError(f"{KEY}: {self._code.name}: {problem}", hint)


def _beside(code: OwnCode) -> dict[str, str]:
    """Digests of the user's other modules that were imported, by their path below the folder of the first."""
    files = {Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    others = sorted(file for file in files if code.holds(str(file)) and file != code.file)
    return {file.relative_to(code.home).as_posix(): content_digest(file.read_bytes()) for file in others}


@contextmanager
def _placed(code: OwnCode) -> Iterator[None]:
    """An error of the user's code says in which of its lines; one about memory stays what it is."""
    try:
        yield
    except (DynbenchError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and "memory" in str(error).lower():
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        where = code.where(error) or code.file.name
        raise WorkerFailed(
            f"{KEY}: {code.name}: {where}: {type(error).__name__}: {reason}",
            "The error comes from the workload's own code; --debug shows where, and in a training run the log.",
        ) from error


def import_model_code(settings: schema.Workload) -> None:
    """Import what making the model imports, which takes seconds, as far as its workload says it."""
    entry = None if settings.runs_own_code else WORKLOADS[settings.name]
    for module in () if entry is None else entry.imports_of(settings.shape):
        import_module(module)


def build_workload(config: Config, classes: Sequence[str] = ()) -> Workload:
    """The workload of `workload.name` with its data loaded and tokenised; no model is built yet.

    Args:
        config: resolved configuration.
        classes: those of a trained classifier of ours in order, which the data are numbered by; none keeps their own.

    Raises:
        DataError: a data file or vocabulary that cannot be used.
        HubError: a hub name that is neither cached nor reachable.
        UsageError, WorkerFailed: a workload of the user's own, by its place or registered, that cannot be used, or
            whose code raised an error.
    """
    if config.workload.is_own:
        return OwnWorkload(config, find_own_code(config.workload))
    name = config.workload.name
    made = WORKLOADS.find(name).load()
    if name not in WORKLOADS.ours:
        return OwnWorkload(config, registered_code(name, made), made)
    workload: Workload = made(config, classes) if classes else made(config)
    return workload
